"""Decoding: any format upright in RGB, reduced as the filter is defined, or UndecodableImage."""

import io
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from croc.data.decode import UndecodableImage, decode_image, downscale_image, fitting_size, resample

from .pictures import encode, jpeg_claiming, noise, png_header, ramp

# From the upright picture to the stored one, by EXIF orientation.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


def close(decoded: np.ndarray, expected: np.ndarray, within: int) -> None:
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected.astype(int)).max() <= within


def with_orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def test_grey_palette_and_bilevel():
    grey = noise(5, 7)[..., 0]
    grey_rgb = np.repeat(grey[..., None], 3, -1)
    np.testing.assert_array_equal(decode_image(encode(grey), 32), grey_rgb)
    palette = Image.fromarray(grey % 4).convert("P")
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7)]
    palette.putpalette(sum(colors, ()))
    expected = np.array(colors, np.uint8)[grey % 4]
    np.testing.assert_array_equal(decode_image(encode(palette), 32), expected)
    bits = Image.fromarray(grey > 99)
    np.testing.assert_array_equal(decode_image(encode(bits), 32), (grey_rgb > 99) * 255)


def test_transparency_is_put_on_white():
    pixels, alpha = noise(4, 6), np.zeros((4, 6, 1), np.uint8)
    alpha[:, :3] = 255
    for color in (pixels, pixels[..., :1]):  # RGBA and LA
        expected = np.where(alpha > 0, np.broadcast_to(color, pixels.shape), 255)
        data = encode(np.concatenate([color, alpha], -1))
        np.testing.assert_array_equal(decode_image(data, 32), expected)
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    for transparency in (1, bytes([255, 0, 255])):
        decoded = decode_image(encode(palette, transparency=transparency), 32)
        assert decoded.tolist() == [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 257, 25700, 65535]], np.uint16), [0, 1, 100, 255]),
        (np.array([[0.0, 0.2, 1.0]], np.float32), [0, 51, 255]),
        (np.array([[0.0, 51.0, 200.0]], np.float32), [0, 51, 200]),
        (np.array([[0.0, 25700.0, 65535.0]], np.float32), [0, 100, 255]),
        (np.array([[-1.0, 0.0, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, np.inf, 1.0]], np.float32), [0, 0, 255]),
        (np.array([[0, 7, 200]], np.int32), [0, 7, 200]),
        (np.array([[0, 25700, 65535]], np.int32), [0, 100, 255]),
        (np.array([[-1000000, 0, 1000000]], np.int32), [0, 128, 255]),
        (np.array([[70000, 70000, 70000]], np.int32), [0, 0, 0]),
    ],
)
def test_wide_numbers_are_scaled_by_the_narrowest_range(values, expected):
    assert decode_image(encode(values, "TIFF"), 32)[0, :, 1].tolist() == expected
    if values.dtype == np.uint16:
        assert decode_image(encode(values), 32)[0, :, 2].tolist() == expected


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_exif_orientation(file_format):
    upright = noise(5, 9)
    for orientation, turn in STORED.items():
        stored = np.ascontiguousarray(turn(upright))
        data = encode(stored, file_format, exif=with_orientation(orientation))
        np.testing.assert_array_equal(decode_image(data, 32), upright)


def test_exif_of_a_reduced_jpeg_and_broken_exif():
    stored = np.ascontiguousarray(np.rot90(ramp(400, 800), 1))
    data = encode(stored, "JPEG", exif=with_orientation(6), quality=95)
    close(decode_image(data, 80), ramp(40, 80), 6)
    data = encode(noise(5, 9), exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xffgarbage")
    np.testing.assert_array_equal(decode_image(data, 32), noise(5, 9))


def test_megapixels_are_counted_before_decoding():
    baseline, progressive = (
        jpeg_claiming(encode(noise(8, 8), "JPEG", progressive=progressive), 17_801, 10_000)
        for progressive in (False, True)
    )
    webp = encode(Image.new("L", (10_000, 4801)), "WEBP", quality=0, method=0)
    for data, reason in (
        (png_header(12_801, 10_000), "128 megapixels"),
        (png_header(20_000, 10), r"truncated|broken|data"),
        (webp, "48 megapixels"),
        (baseline, "178 megapixels"),
        (progressive, "128 megapixels"),
    ):
        with pytest.raises(UndecodableImage, match=reason):
            decode_image(data, 32)


# The fast reduction against Pillow's and against the filter's definition.


def filter_weights(length: int, side: int, extent: float) -> np.ndarray:
    """Row i: the share of each of `length` pixels in pixel i of `side`, over 0 … extent, by Keys'
    cubic kernel with a = −1/2."""
    scale = extent / side
    centers = (np.arange(side)[:, None] + 0.5) * scale
    x = np.abs((np.arange(length) + 0.5 - centers) / scale)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    rows = np.where(x < 1, near, np.where(x < 2, far, 0))
    return rows / rows.sum(1, keepdims=True)


def antialiased_bicubic(pixels: np.ndarray, size, extent) -> np.ndarray:
    """In float64, rounded once at the end."""
    height, width, _ = pixels.shape
    across = filter_weights(width, size[0], extent[0])
    down = filter_weights(height, size[1], extent[1])
    reduced = np.einsum("yh,xw,hwc->yxc", down, across, pixels.astype(float), optimize=True)
    return reduced.round().clip(0, 255)


@pytest.mark.parametrize("size", [(300, 225), (193, 50), (350, 3), (1, 250), (200, 320)])
@pytest.mark.parametrize("make", [noise, ramp])
def test_reduction_equals_pillow_and_the_definition(size, make):
    width, height = size
    pixels = make(height, width)
    reduced_size = fitting_size(size, 192)
    by_pillow = Image.fromarray(pixels).resize(reduced_size, Image.Resampling.BICUBIC)
    close(downscale_image(pixels, 192), np.asarray(by_pillow), 1)
    np.testing.assert_array_equal(decode_image(encode(pixels), 192), downscale_image(pixels, 192))
    # Both round to 8 bits between their passes, and clip what the second would bring back.
    soft = pixels // 2 + 64
    close(downscale_image(soft, 192), antialiased_bicubic(soft, reduced_size, size), 1)


@pytest.mark.parametrize("size", [(643, 485), (800, 200), (1601, 403)])
def test_large_images_are_first_reduced_by_whole_factors(size):
    pixels, reduced_size = noise(size[1], size[0]), fitting_size(size, 100)
    options = {"resample": Image.Resampling.BICUBIC, "reducing_gap": 2}
    by_pillow = Image.fromarray(pixels).resize(reduced_size, **options)
    close(downscale_image(pixels, 100), np.asarray(by_pillow), 1)


@pytest.mark.parametrize("fraction", [0.125, 0.875])
def test_a_fraction_of_a_pixel_is_left_out(fraction):
    pixels, extent = noise(101, 151) // 2 + 64, (150 + fraction, 100 + fraction)
    reduced = resample(pixels, (60, 40), extent)
    close(reduced, antialiased_bicubic(pixels, (60, 40), extent), 1)
    whole = antialiased_bicubic(pixels, (60, 40), (151, 101))
    assert np.abs(reduced - whole).max() > 2


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_equal_pillows(options, channels, monkeypatch):
    pixels = ramp(150, 200) // 2 + noise(150, 200) // 4
    data = encode(pixels if channels == 3 else pixels[..., 0], "JPEG", **options)
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    halved = picture.resize((100, 75), Image.Resampling.BICUBIC)
    monkeypatch.setattr("croc.data.decode.to_rgb", None)  # Pillow's decoder is not needed
    close(decode_image(data, 200), np.asarray(picture), 1)
    close(decode_image(data, 100), np.asarray(halved), 2)


def test_jpegs_that_torchvision_cannot_take_are_left_to_pillow(monkeypatch):
    data = encode(noise(30, 40), "JPEG")
    whole = decode_image(data, 40)
    wrong = torch.zeros(3, 30, 41, dtype=torch.uint8)  # it reads another size in the header
    monkeypatch.setattr("croc.data.decode.decode_jpeg", lambda *_: wrong)
    close(decode_image(data, 40), whole, 1)


def test_large_jpegs_are_never_whole_in_memory(monkeypatch):
    data = encode(ramp(1003, 1501), "JPEG", quality=95)
    fair = Image.open(io.BytesIO(data)).resize((60, 40), Image.Resampling.BICUBIC)
    sizes: list[tuple[int, int]] = []

    def to_rgb(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
        sizes.append(image.size)
        return lambda part: part.convert("RGB")

    monkeypatch.setattr("croc.data.decode.to_rgb", to_rgb)
    close(decode_image(data, 60), np.asarray(fair), 3)
    assert sizes == [(188, 126)]


@pytest.mark.parametrize("mode", ["RGBA", "P", "I;16", "F", "CMYK"])
def test_bands_change_nothing(monkeypatch, mode):
    """The last band is not full, nor its last row of blocks."""
    pixels = Image.fromarray(noise(211, 157))
    if mode in ("I;16", "F"):
        wide = np.asarray(pixels.convert("L")).astype(np.uint16) * 257
        picture = Image.fromarray(wide if mode == "I;16" else wide.astype(np.float32) - 9)
    else:
        pixels.putalpha(Image.fromarray(noise(211, 157, 1)[..., 0]))
        picture = pixels.convert(mode)
    data = encode(picture, "TIFF" if mode in ("F", "CMYK") else "PNG")
    whole = decode_image(data, 20)
    monkeypatch.setattr("croc.data.decode._BAND_PIXELS", 157 * 21)
    np.testing.assert_array_equal(decode_image(data, 20), whole)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_files_are_undecodable_or_images(kind: str):
    """Whatever is flipped or cut off, nothing else is raised; `make soak` tries many more files."""
    file, draw = io.BytesIO(), random.Random(0)
    Image.fromarray(noise(40, 30)).save(file, kind)
    for _ in range(200):
        content = bytearray(file.getvalue())
        for _ in range(draw.randint(1, 8)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        try:
            image = decode_image(bytes(content[: draw.randint(1, 2 * len(content))]), 64)
        except UndecodableImage:
            continue
        assert (image.dtype, image.ndim) == (np.uint8, 3)
