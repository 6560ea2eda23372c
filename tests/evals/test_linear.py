"""Linear segmentation on made-up features whose answer is known, and on scenes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from croc.evals.datasets import Labelled
from croc.evals.inputs import batches, in_order
from croc.evals.linear import LinearConfig, Scale, evaluate_linear, fit, upsample

CONFIG = LinearConfig(
    image_px=32, train_px=16, score_px=16, batch=4, steps=150, rate=3e-2, standardise=True
)
CPU = torch.device("cpu")


class Patches:
    """Images of 8 px squares; a square's class is whether it is bright, 255 in one corner."""

    classes = ("dark", "bright")

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


def test_a_linear_answer_is_found():
    report = evaluate_linear(MeanColour(), Patches(12, 0), Patches(6, 1), CONFIG, CPU)
    assert report.mean > 0.75  # the upsampled logits blur the squares' borders
    exact = replace(CONFIG, train_px=4, score_px=4)
    assert evaluate_linear(MeanColour(), Patches(12, 0), Patches(6, 1), exact, CPU).mean == 1


def test_blind_features_score_no_better_than_one_class():
    report = evaluate_linear(Blind(), Patches(12, 0), Patches(6, 1), CONFIG, CPU)
    assert report.mean < 0.4


def test_the_seed_decides_everything():
    options = (MeanColour(), Patches(12, 0), Patches(6, 1))
    short = replace(CONFIG, steps=5)
    one, again, other = (
        evaluate_linear(*options, replace(short, seed=seed), CPU).per_class for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_ignored_pixels_have_no_say():
    features = torch.randn(4, 3, 4, 4)
    labels = torch.randint(0, 2, (4, 16, 16))
    labels[:, :4] = 255
    changed = features.clone()
    labels[3] = 255
    changed[3] = torch.randn(3, 4, 4)  # an image that is ignored altogether
    config = replace(CONFIG, standardise=False, batch=2, steps=20)
    layers = [fit(x, labels, 2, config)[0] for x in (features, changed)]
    for one, other in zip(layers[0].parameters(), layers[1].parameters()):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


def test_upsampling_commutes_with_the_layer():
    layer, x = torch.nn.Conv2d(5, 3, 1), torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(upsample(layer(x), 16), layer(upsample(x, 16)))


def test_standardised_by_the_training_part():
    features = 3 * torch.randn(50, 2, 4, 4) + 7
    scaled = Scale(features, standardise=True)(features)
    torch.testing.assert_close(scaled.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(dim=(0, 2, 3)), torch.ones(2))
    assert torch.equal(Scale(features, standardise=False)(features), features)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_squashed_and_normalised(workers: int):
    data = Patches(5, 0)
    made = list(
        batches(
            data,
            in_order(5, 2),
            image_px=16,
            label_px=8,
            workers=workers,
            device=torch.device("cpu"),
        )
    )
    assert [len(batch.images) for batch in made] == [2, 2, 1]
    assert made[0].images.shape == (2, 3, 16, 16)
    expected = data.read(4).labels[2::4, 2::4]
    assert np.array_equal(made[2].labels[0].numpy(), expected)
    pixel = (float(data.read(4).image[12, 4, 0]) / 255 - 0.485) / 0.229
    assert made[2].images[0, 0, 6, 2].item() == pytest.approx(pixel, abs=0.05)
