"""Linear segmentation on made-up features whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from croc.eval.datasets import LabeledImage
from croc.eval.linear import (
    MEAN_COLOR,
    crop_box,
    evaluate_linear,
    scaled_window,
    segmentation_loss,
    training_crop,
)
from croc.eval.machine import Machine
from croc.eval.protocols import LinearConfig
from tests.eval.fakes import MeanColor, Patches, SecondToLast

CONFIG = LinearConfig(
    image_px=32,
    blocks=1,
    train_px=16,
    score_px=16,
    batch=4,
    epochs=None,
    steps=150,
    lrs=(3e-2,),
    standardize=True,
    crop=None,
)


def score_of(config: LinearConfig, backbone: MeanColor | None = None) -> float:
    parts = (Patches(12, 0), Patches(6, 1))
    return evaluate_linear(backbone or MeanColor(), Machine(), *parts, config).scores["mIoU"] / 100


def test_a_linear_answer_is_learned():
    assert score_of(CONFIG) > 0.75  # the upsampled logits blur the squares' borders
    assert score_of(replace(CONFIG, train_px=4, score_px=4)) == 1
    crops = replace(CONFIG, crop=0.5, image_px=64, train_px=8, score_px=8, steps=200)
    assert score_of(crops) > 0.8
    windows = replace(CONFIG, resize="keep-ratio", score_px=None, steps=200)
    assert score_of(windows) > 0.7


@pytest.mark.parametrize("crop", [None, 0.5])
def test_training_and_scoring_use_the_same_blocks(crop: float | None):
    backbone = SecondToLast()
    config = replace(CONFIG, blocks=2, crop=crop, train_px=4, score_px=4)
    assert score_of(config, backbone) > 0.9
    assert set(backbone.requested) == {2}


def test_the_best_of_several_rates_is_reported():
    rates = (1e-9, 3e-2, 1e-10)
    report = evaluate_linear(
        MeanColor(), Machine(), Patches(12, 0), Patches(6, 1), replace(CONFIG, lrs=rates)
    )
    by_rate = report.scores["by rate"]
    assert report.scores["best rate"] == "0.03"
    assert tuple(map(float, by_rate)) == rates
    assert report.scores["mIoU"] == max(by_rate.values())
    # Layers do not disturb each other.
    assert by_rate["0.03"] / 100 == score_of(replace(CONFIG, lrs=(3e-2,)))


def test_scores_at_each_image_s_own_size():
    assert score_of(replace(CONFIG, score_px=None)) == score_of(replace(CONFIG, score_px=32))


def test_rates_fall_by_the_power(monkeypatch: pytest.MonkeyPatch):
    rates = []
    real = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW) -> None:
        rates.append(self.param_groups[0]["lr"])
        real(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    score_of(replace(CONFIG, steps=4, poly=0.9, lrs=(1e-3,)))
    assert rates == pytest.approx([1e-3 * (1 - i / 4) ** 0.9 for i in range(4)])


def test_the_loss_is_the_mean_over_labeled_pixels():
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


class Ramps(Patches):
    """Bright on the right and below; the labels say which half."""

    def read(self, index: int) -> LabeledImage:
        rows, columns = np.mgrid[:48, :64]
        labels = (columns > 31).astype(np.uint8)
        return LabeledImage(
            np.stack([200 * labels, rows, columns], -1).astype(np.uint8), labels, ""
        )


CROPS = [{"crop": 0.3}, {"resize": "keep-ratio", "score_px": None}]


@pytest.mark.parametrize("change", CROPS)
def test_crops_take_the_same_part_of_image_and_labels(change: dict):
    crop, labeled = training_crop(replace(CONFIG, **change)), Ramps(1, 0).read(0)
    flipped = 0
    for step in range(40):
        image, labels = crop(labeled.image, labeled.labels, step, 3)
        inside = labels != 255
        assert np.array_equal(image[..., 0][inside] == 200, labels[inside] == 1)
        columns = image[0, :, 2][inside[0]].astype(int)
        flipped += columns[0] > columns[-1]
    assert 8 < flipped < 32


@pytest.mark.parametrize("change", CROPS)
def test_crops_follow_seed_step_and_image(change: dict):
    labeled = Ramps(1, 0).read(0)

    def crop(seed: int, step: int, index: int) -> np.ndarray:
        cut = training_crop(replace(CONFIG, **change, seed=seed))
        return cut(labeled.image, labeled.labels, step, index)[0]

    assert np.array_equal(crop(0, 0, 0), crop(0, 0, 0))
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not np.array_equal(crop(0, 0, 0), crop(*other))


def test_boxes_are_inside_and_have_their_area():
    generator = np.random.default_rng(0)
    shapes = [(375, 500), (500, 333), (64, 64)]
    aspects = []
    for draw in range(600):
        shape = shapes[draw % 3]
        area = 0.3 + 0.7 * generator.random()
        top, left, height, width = crop_box(shape, area, *generator.random(3))
        assert 0 <= top <= shape[0] - height
        assert 0 <= left <= shape[1] - width
        assert height * width == pytest.approx(area * shape[0] * shape[1], rel=0.03)
        aspects.append((width / shape[1]) / (height / shape[0]))
    assert min(aspects) > 0.72
    assert max(aspects) < 1.39
    assert crop_box((48, 64), 1.0, 0.9, 0.9, 0.9) == (0, 0, 48, 64)


def test_outside_the_image_nothing_is_labeled():
    image, labels = np.full((40, 60, 3), 7, np.uint8), np.full((40, 60), 3, np.uint8)
    padded = []
    for draws in np.random.default_rng(0).random((60, 3)):
        window, truth = scaled_window(image, labels, *draws.tolist())
        assert window.shape == (len(truth), len(truth), 3)
        assert 20 <= len(truth) <= 80
        outside = truth == 255
        assert (window[outside] == MEAN_COLOR).all()
        assert (window[~outside] == 7).all()
        padded.append(bool(outside.any()))
    assert 5 < sum(padded) < 55
