"""Batches of labelled photographs: sizes, crops, what is held, and complaints from workers."""

import numpy as np
import pytest
import torch
from PIL import Image

from croc.errors import UserError
from croc.eval.datasets import Labelled
from croc.eval.inputs import PatchFeatures, batches, in_order, kept_ratio
from croc.method.photometric import normalise
from tests.evals.test_linear import CPU, MeanColour, Patches


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_squashed_and_normalised(workers: int):
    data = Patches(5, 0)
    options = {"image_px": 16, "label_px": 8, "workers": workers, "device": CPU}
    made = list(batches(data, in_order(5, 2), **options))  # pyright: ignore[reportArgumentType]
    assert [len(batch.images) for batch in made] == [2, 2, 1]
    assert made[0].images.shape == (2, 3, 16, 16)
    expected = data.read(4).labels[2::4, 2::4]
    assert np.array_equal(made[2].labels[0].numpy(), expected)
    pixel = (float(data.read(4).image[12, 4, 0]) / 255 - 0.485) / 0.229
    assert made[2].images[0, 0, 6, 2].item() == pytest.approx(pixel, abs=0.05)


class Noise(Patches):
    def read(self, index: int) -> Labelled:
        image = np.random.default_rng(index).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        return Labelled(image, np.zeros((30, 40), np.uint8), str(index))


@pytest.mark.parametrize("side", [16, 64])
def test_images_are_resized_by_pil_s_bicubic(side: int):
    options = {"image_px": side, "label_px": 8, "workers": 0, "device": CPU}
    made = next(batches(Noise(1, 0), [[0]], **options))  # pyright: ignore[reportArgumentType]
    photograph = Image.fromarray(Noise(1, 0).read(0).image)
    pixels = np.array(photograph.resize((side, side), Image.Resampling.BICUBIC))
    expected = normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255)
    assert torch.equal(made.images, expected)


class Tall(Patches):
    """Images of several sizes whose colour tells the label."""

    def read(self, index: int) -> Labelled:
        read = super().read(index)
        rows = 24 + 4 * index
        return Labelled(read.image[:rows], read.labels[:rows], read.name)


def test_labels_may_keep_their_own_size():
    options = {"image_px": 16, "label_px": None, "workers": 0, "device": CPU}
    made = next(batches(Tall(3, 0), [range(3)], **options))  # pyright: ignore[reportArgumentType]
    assert isinstance(made.labels, list)
    assert [tuple(each.shape) for each in made.labels] == [(24, 32), (28, 32), (32, 32)]


def test_the_ratio_may_be_kept():
    options = {"image_px": 48, "label_px": None, "workers": 0, "device": CPU, "keep_ratio": 16}
    made = list(batches(Tall(3, 0), in_order(3, 1), **options))  # pyright: ignore
    assert [tuple(batch.images.shape[2:]) for batch in made] == [(48, 64), (48, 48), (48, 48)]
    assert kept_ratio((100, 50), 512, 16) == (1024, 512)
    assert kept_ratio((50, 5000), 512, 16) == (512, 2048)


def test_features_are_held_when_they_fit():
    options = {"image_px": 32, "label_px": 8, "blocks": 1, "device": CPU, "workers": 0, "batch": 2}
    roomy = PatchFeatures(MeanColour(), Patches(5, 0), **options)  # pyright: ignore
    tight = PatchFeatures(MeanColour(), Patches(5, 0), **options, held_bytes=2000)  # pyright: ignore
    for _ in range(2):
        for one, other in zip(roomy.passes("features"), tight.passes("features"), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
    assert roomy.held is not None
    assert roomy.held[0].shape == (5, 6, 4, 4)
    assert tight.held is None


def test_a_pass_that_was_left_early_holds_nothing():
    options = {"image_px": 32, "label_px": 8, "blocks": 1, "device": CPU, "workers": 0, "batch": 2}
    patches = PatchFeatures(MeanColour(), Patches(5, 0), **options)  # pyright: ignore
    next(patches.passes("features"))
    assert patches.held is None


class Broken(Patches):
    def read(self, index: int) -> Labelled:
        raise UserError(f"photograph {index} has a label too many")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_complaint_stays_one_line_wherever_it_comes_from(workers: int):
    options = {"image_px": 16, "label_px": 8, "workers": workers, "device": CPU}
    with pytest.raises(UserError) as caught:
        list(batches(Broken(3, 0), in_order(3, 2), **options))  # pyright: ignore
    assert str(caught.value) == "photograph 0 has a label too many"
