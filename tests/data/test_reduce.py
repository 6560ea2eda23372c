"""The fast reduction against Pillow's and against the filter's definition."""

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from croc.data.decode import decode_image
from croc.data.reduce import fitting_size, reduce_image, reduce_picture, resample

from .pictures import encode, noise, ramp


def cubic(x: float) -> float:
    """Keys' kernel with a = −1/2."""
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def weights(length: int, side: int, extent: float) -> np.ndarray:
    """Row i: the share of each of `length` pixels in pixel i of `side`, over 0 … extent."""
    scale = extent / side
    rows = np.zeros((side, length))
    for i in range(side):
        center = (i + 0.5) * scale
        for x in range(length):
            if abs(x + 0.5 - center) < 2 * scale:
                rows[i, x] = cubic((x + 0.5 - center) / scale)
    return rows / rows.sum(1, keepdims=True)


def antialiased_bicubic(pixels: np.ndarray, size, extent) -> np.ndarray:
    """In float64, rounded once at the end."""
    height, width, _ = pixels.shape
    across = weights(width, size[0], extent[0])
    down = weights(height, size[1], extent[1])
    rows = np.einsum("yh,hwc->ywc", down, pixels.astype(float))
    return np.einsum("xw,ywc->yxc", across, rows).round().clip(0, 255)


def difference(left: np.ndarray, right: np.ndarray) -> float:
    assert left.shape == right.shape
    return np.abs(left.astype(float) - right.astype(float)).max()


SIZES = [(640, 480), (500, 375), (427, 640), (385, 100), (700, 3), (1, 500), (767, 768)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [noise, ramp])
def test_equals_pillow_and_the_definition(size, make):
    width, height = size
    pixels = make(height, width)
    reduced = reduce_image(pixels, 384)
    wanted = fitting_size(size, 384)
    assert reduced.dtype == np.uint8
    by_pillow = Image.fromarray(pixels).resize(wanted, Image.Resampling.BICUBIC)
    assert difference(reduced, np.asarray(by_pillow)) <= 1
    # Both round to 8 bits between their passes, and clip there what the second would bring back.
    soft = pixels // 2 + 64
    defined = antialiased_bicubic(soft, wanted, size)
    assert difference(reduce_image(soft, 384), defined) <= 1


@pytest.mark.parametrize("size", [(643, 485), (800, 200), (1601, 403)])
def test_large_pictures_are_made_coarser_first(size):
    width, height = size
    pixels = noise(height, width)
    wanted = fitting_size(size, 100)
    by_pillow = Image.fromarray(pixels).resize(wanted, Image.Resampling.BICUBIC, reducing_gap=2)
    assert difference(reduce_image(pixels, 100), np.asarray(by_pillow)) <= 1


@pytest.mark.parametrize("left_over", [0.125, 0.5, 0.875])
def test_part_of_a_pixel_is_left_out(left_over):
    pixels = noise(101, 151) // 2 + 64
    extent = (150 + left_over, 100 + left_over)
    reduced = resample(pixels, (60, 40), extent)
    assert difference(reduced, antialiased_bicubic(pixels, (60, 40), extent)) <= 1
    # Without it, the last columns would be those of another place.
    assert difference(reduced, antialiased_bicubic(pixels, (60, 40), (151, 101))) > 2


def test_size_is_as_asked_for_whatever_the_rounding():
    for width in range(2, 400, 7):
        for side in {1, width // 2, width - 1} - {0}:
            pixels = np.zeros((3, width, 3), np.uint8)
            assert resample(pixels, (side, 3), (width, 3)).shape == (3, side, 3)


def test_channels_first_memory_and_read_only_arrays():
    planes = np.ascontiguousarray(noise(60, 90).transpose(2, 0, 1))
    view = planes.transpose(1, 2, 0)
    view.setflags(write=False)
    for canvas_px in (70, 20):
        np.testing.assert_array_equal(
            reduce_image(view, canvas_px), reduce_image(np.ascontiguousarray(view), canvas_px)
        )


def test_a_picture_that_fits_is_an_array_of_its_own():
    picture = Image.fromarray(noise(4, 6))
    reduce_picture(picture, (6, 4), (6, 4))[:] = 0
    assert np.asarray(picture).any()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_are_what_pillow_makes_of_them(options, channels, monkeypatch):
    pixels = ramp(150, 200) // 2 + noise(150, 200) // 4
    data = encode(pixels if channels == 3 else pixels[..., 0], "JPEG", **options)
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    halved = picture.resize((100, 75), Image.Resampling.BICUBIC)
    monkeypatch.setattr("croc.data.decode._to_rgb", None)  # Pillow's decoder is not needed
    assert difference(decode_image(data, 200), np.asarray(picture)) <= 1
    assert difference(decode_image(data, 100), np.asarray(halved)) <= 2


def test_a_long_file_is_left_to_pillow(monkeypatch):
    data = encode(noise(30, 40), "JPEG")
    whole = decode_image(data, 40)
    monkeypatch.setattr("croc.data.decode._LARGEST_FAST_JPEG_BYTES", len(data))
    monkeypatch.setattr("croc.data.decode.decode_jpeg", None)
    assert difference(decode_image(data + b"more", 40), whole) <= 1


def test_decoders_that_disagree_on_the_size(monkeypatch):
    data = encode(noise(30, 40), "JPEG")
    whole = decode_image(data, 40)
    wrong = torch.zeros(3, 30, 41, dtype=torch.uint8)
    monkeypatch.setattr("croc.data.decode.decode_jpeg", lambda *_: wrong)
    assert difference(decode_image(data, 40), whole) <= 1


def test_large_jpegs_are_never_whole_in_memory(monkeypatch):
    seen: list[tuple[int, int]] = []

    def note(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
        seen.append(image.size)
        return lambda part: part.convert("RGB")

    monkeypatch.setattr("croc.data.decode._to_rgb", note)
    data = encode(Image.new("RGB", (4000, 3001)), "JPEG")
    assert decode_image(data, 384).shape == (288, 384, 3)
    assert seen == [(1000, math.ceil(3001 / 4))]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "I;16", "F", "CMYK"])
def test_bands_change_nothing(monkeypatch, mode):
    """A picture is worked on in bands; the last is not full, nor its last row of blocks."""
    pixels = Image.fromarray(noise(211, 157))
    if mode in ("I;16", "F"):
        wide = np.asarray(pixels.convert("L")).astype(np.uint16) * 257
        picture = Image.fromarray(wide if mode == "I;16" else wide.astype(np.float32) - 9)
    else:
        pixels.putalpha(Image.fromarray(noise(211, 157, 1)[..., 0]))
        picture = pixels.convert(mode)
    data = encode(picture, "TIFF" if mode in ("F", "CMYK") else "PNG")
    whole = decode_image(data, 20)
    monkeypatch.setattr("croc.data.reduce._BAND_PIXELS", 157 * 21)
    np.testing.assert_array_equal(decode_image(data, 20), whole)
