"""Linear segmentation on made-up features whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from croc.errors import UserError
from croc.eval import inputs
from croc.eval.datasets import Labelled
from croc.eval.linear import Layer, TrainingFeatures, evaluate_linear, fit, segmentation_loss
from croc.eval.moments import Moments
from croc.eval.protocols import LinearConfig, linear_protocol
from croc.eval.scoring import upsample

CONFIG = LinearConfig(
    image_px=32,
    blocks=1,
    train_px=16,
    score_px=16,
    batch=4,
    epochs=None,
    steps=150,
    rates=(3e-2,),
    standardise=True,
    crop=None,
)
CPU = torch.device("cpu")
HERE = {"device": CPU, "workers": 0}


class Patches:
    """Images of 8 px squares; a square's class is whether it is bright, 255 in one corner."""

    classes: tuple[str, ...] = ("dark", "bright")

    def __init__(self, count: int, seed: int) -> None:
        self.bright = np.random.default_rng(seed).integers(0, 2, (count, 4, 4)).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.bright)

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Labelled:
        labels = self.bright[index].repeat(8, axis=0).repeat(8, axis=1)
        image = (60 + 130 * labels)[..., None].repeat(3, axis=2).astype(np.uint8)
        labels[:8, :8] = 255
        return Labelled(image, labels, str(index))


class MeanColour:
    """A backbone whose features are the mean colours of 8 px squares, and noise beside them."""

    name = "mean colour"
    stride_px = 8

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        colours = F.avg_pool2d(images, 8)
        noise = torch.sin(1e4 * colours)  # the same for the same colours
        return torch.cat([colours, noise], dim=1)


class Blind(MeanColour):
    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return torch.zeros(len(images), 3, 4, 4)


class SecondToLast(MeanColour):
    """Its last block is blind and the one before sees the colours; keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        self.asked.append(blocks)
        colours = super().features(images)
        return torch.cat([torch.zeros_like(colours), colours][:blocks], dim=1)


def score_of(config: LinearConfig, backbone: MeanColour | None = None) -> float:
    parts = (Patches(12, 0), Patches(6, 1))
    return evaluate_linear(backbone or MeanColour(), *parts, config, CPU).best.iou.mean


def test_a_linear_answer_is_found():
    assert score_of(CONFIG) > 0.75  # the upsampled logits blur the squares' borders
    assert score_of(replace(CONFIG, train_px=4, score_px=4)) == 1


def test_an_answer_is_found_on_crops_too():
    crops = replace(CONFIG, crop=0.5, image_px=64, train_px=8, score_px=8, steps=200)
    assert score_of(crops) > 0.8


def test_an_answer_is_found_on_windows_at_random_scales():
    keep = replace(CONFIG, framing="keep", image_px=32, train_px=16, score_px=None, steps=200)
    assert score_of(keep) > 0.7


@pytest.mark.parametrize("crop", [None, 0.5])
def test_training_and_scoring_ask_for_the_same_blocks(crop: float | None):
    backbone = SecondToLast()
    config = replace(CONFIG, blocks=2, crop=crop, train_px=4, score_px=4)
    assert score_of(config, backbone) > 0.9
    assert set(backbone.asked) == {2}


class Numbered(Patches):
    """Each of the 15 × 15 pixels has its own label, so that labels tell what a crop has left."""

    def read(self, index: int) -> Labelled:
        labels = np.arange(225, dtype=np.uint8).reshape(15, 15)
        return Labelled(np.zeros((15, 15, 3), np.uint8), labels, str(index))


@pytest.mark.parametrize("crop", [0.3, 0.7])
def test_crops_leave_the_share_asked_for_or_more(crop: float):
    config = replace(CONFIG, crop=crop, batch=1, steps=100)
    steps = TrainingFeatures(MeanColour(), Numbered(4, 0), config, **HERE).batches()
    shares = [len(labels.unique()) / 225 for _, labels in steps]
    assert min(shares) == pytest.approx(crop, abs=0.05)
    assert max(shares) > 0.9


def test_blind_features_score_no_better_than_one_class():
    assert score_of(CONFIG, Blind()) < 0.4


@pytest.mark.parametrize("crop", [None, 0.8])
def test_the_seed_decides_everything(crop: float | None):
    short = replace(CONFIG, steps=5, crop=crop)
    one, again, other = (
        evaluate_linear(
            MeanColour(), Patches(12, 0), Patches(6, 1), replace(short, seed=seed), CPU
        ).best.iou.per_class
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_best_of_several_rates_is_reported():
    rates = (1e-9, 3e-2, 1e-10)
    report = evaluate_linear(
        MeanColour(), Patches(12, 0), Patches(6, 1), replace(CONFIG, rates=rates), CPU
    )
    assert report.rate == 3e-2
    assert tuple(report.by_rate) == rates
    assert report.best.iou.mean == max(report.by_rate.values())
    # Layers do not disturb each other.
    assert report.by_rate[3e-2] == score_of(replace(CONFIG, rates=(3e-2,)))


def test_features_that_do_not_fit_are_found_anew(monkeypatch: pytest.MonkeyPatch):
    short = replace(CONFIG, steps=7)
    held = evaluate_linear(MeanColour(), Patches(12, 0), Patches(6, 1), short, CPU)
    monkeypatch.setattr(inputs.PatchFeatures, "_room", lambda *_: None)
    anew = evaluate_linear(MeanColour(), Patches(12, 0), Patches(6, 1), short, CPU)
    torch.testing.assert_close(anew.best.iou.per_class, held.best.iou.per_class)


def test_scores_at_each_image_s_own_size():
    assert score_of(replace(CONFIG, score_px=None)) == score_of(replace(CONFIG, score_px=32))


def test_an_epoch_is_whole_batches():
    source = TrainingFeatures(
        MeanColour(), Patches(12, 0), replace(CONFIG, steps=None, epochs=3, batch=5), **HERE
    )
    assert source.steps == 6
    seen = list(source.batches())
    assert [features.shape for features, _ in seen] == [(5, 6, 4, 4)] * 6
    assert [labels.shape for _, labels in seen] == [(5, 16, 16)] * 6


def test_rates_fall_by_the_power(monkeypatch: pytest.MonkeyPatch):
    rates = []
    real = torch.optim.Adam.step

    def watched(self: torch.optim.Adam) -> None:
        rates.append(self.param_groups[0]["lr"])
        real(self)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    score_of(replace(CONFIG, steps=4, poly=0.9, rates=(1e-3,)))
    assert rates == pytest.approx([1e-3 * (1 - i / 4) ** 0.9 for i in range(4)])


def test_ignored_pixels_have_no_say():
    features = torch.randn(4, 3, 4, 4)
    labels = torch.randint(0, 2, (4, 16, 16))
    labels[:, :4] = 255
    labels[3] = 255  # an image that is ignored altogether
    changed = features.clone()
    changed[3] = torch.randn(3, 4, 4)
    layers = [
        fit(iter([(x[i : i + 2], labels[i : i + 2]) for i in (0, 2)] * 9), None, 2, 18, CONFIG)[0]
        for x in (features, changed)
    ]
    for one, other in zip(layers[0].parameters(), layers[1].parameters()):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


def test_the_loss_is_the_mean_over_labelled_pixels():
    logits, labels = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 8, 8))
    labels[0, :3] = 255
    large = torch.nn.functional.interpolate(logits, (8, 8), mode="bilinear").log_softmax(dim=1)
    picked = [
        -large[b, labels[b, y, x], y, x]
        for b in range(2)
        for y in range(8)
        for x in range(8)
        if labels[b, y, x] != 255
    ]
    torch.testing.assert_close(segmentation_loss(logits, labels), torch.stack(picked).mean())
    assert segmentation_loss(logits, torch.full((2, 8, 8), 255)) == 0


def test_upsampling_commutes_with_the_layer():
    layer, x = torch.nn.Conv2d(5, 3, 1), torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(upsample(layer(x), (16, 16)), layer(upsample(x, (16, 16))))


def test_standardised_by_the_training_part():
    features = 3 * torch.randn(50, 2, 4, 4) + 1e4  # far off
    moments = Moments()
    for part in features.split(7):
        moments.add(part, covariance=True)
    layer = Layer(2, 2, moments)
    scaled = (features - layer.mean) / layer.deviation
    torch.testing.assert_close(scaled.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(scaled.std(dim=(0, 2, 3)), torch.ones(2), atol=1e-3, rtol=0)
    flat = features.movedim(1, 0).flatten(1).double()
    torch.testing.assert_close(moments.covariance, flat.cov(correction=0), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("voc12", {"epochs": 45, "blocks": 4, "score_px": 448, "standardise": False}),
        ("coco-things", {"epochs": 10, "crop": 0.8}),
        ("coco-stuff", {"epochs": 10, "rates": (1e-3,)}),
        ("ade20k", {"steps": 40_000, "batch": 16, "poly": 0.9, "framing": "keep"}),
        ("coco-things-mini", {"blocks": 1, "batch": 32, "steps": 1500, "crop": None}),
    ],
)
def test_protocols_by_data(kind: str, expected: dict[str, object]):
    config = linear_protocol(kind)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    "change", [{"rates": ()}, {"rates": (-1.0,)}, {"crop": 0.0}, {"batch": 0}, {"score_px": 0}]
)
def test_values_out_of_range(change: dict[str, object]):
    with pytest.raises(UserError, match="--linear"):
        replace(CONFIG, **change)  # pyright: ignore[reportArgumentType]


def test_other_classes_in_the_validation_part():
    other = Patches(2, 0)
    other.classes = ("dark", "bright", "none")
    with pytest.raises(UserError, match="different classes"):
        evaluate_linear(MeanColour(), Patches(4, 0), other, CONFIG, CPU)
