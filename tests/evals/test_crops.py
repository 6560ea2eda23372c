"""Random parts of labelled images: the same of image and labels, inside, of the wanted size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from croc.eval.crops import MEAN_COLOUR, ResizedCrops, ScaledCrops, crop_box, window_side
from croc.eval.inputs import batches
from tests.evals.test_linear import CPU, Patches

KINDS = {"resized": lambda seed: ResizedCrops(0.3, seed), "scaled": ScaledCrops}


def cropped(kind: str, seed: int, step: int = 0) -> tuple[Tensor, Tensor]:
    """Of images at full size, so that labels and colours can be compared pixel by pixel."""
    options = {"image_px": 64, "label_px": 64, "workers": 0, "device": CPU}
    order = [[0]] * step + [[1, 2]]
    crops = KINDS[kind](seed)
    made = list(batches(Patches(3, 0), order, crops=crops, **options))[-1]  # pyright: ignore
    assert isinstance(made.labels, Tensor)
    return made.images, made.labels


@pytest.mark.parametrize("kind", list(KINDS))
def test_crops_take_image_and_labels_alike(kind: str):
    for seed in range(8):
        images, labels = cropped(kind, seed)
        bright = images[:, 0] > 0  # 60 and 190 lie on both sides of the mean colour
        scored = labels != 255
        assert (bright == (labels == 1))[scored].float().mean() > 0.9  # but for blurred borders


@pytest.mark.parametrize("kind", list(KINDS))
def test_crops_follow_seed_step_and_image(kind: str):
    one, again, other, later = (cropped(kind, *key)[0] for key in ((0,), (0,), (1,), (0, 1)))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, later)


def test_boxes_lie_inside_and_have_their_area():
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


def test_windows_have_their_scale():
    assert window_side((480, 640), 1.0) == 480  # at scale 1 the shorter side fits
    assert window_side((480, 640), 0.5) == 960
    assert window_side((640, 480), 2.0) == 240
    assert window_side((100, 1000), 1.0) == 250  # the longer side is four windows at most


def test_beyond_the_image_nothing_is_labelled():
    image = np.full((40, 60, 3), 7, np.uint8)
    labels = np.full((40, 60), 3, np.uint8)
    padded, whole = 0, 0
    for step in range(60):
        window, truth = ScaledCrops(0).cut(image, labels, step, 0)
        assert window.shape == (*truth.shape, 3)
        assert truth.shape[0] == truth.shape[1]
        assert 20 <= len(truth) <= 80
        outside = truth == 255
        assert (window[outside] == MEAN_COLOUR).all()
        assert (window[~outside] == 7).all()
        padded, whole = padded + outside.any(), whole + (not outside.any())
    assert padded > 5
    assert whole > 5
