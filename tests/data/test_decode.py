import io

import numpy as np
import pytest
from PIL import Image

from croc.data.decode import UndecodableImage, decode_image, place_on_canvas
from croc.data.reduce import reduce_image

from .pictures import encode, jpeg_claiming, noise, png_header, ramp

# What a viewer shows for each way of turning, from the upright picture to the stored one.
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


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_keep_every_pixel(file_format):
    pixels = noise(13, 29)
    decoded = decode_image(encode(pixels, file_format), 32)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, pixels)


def test_lossless_webp_and_streams():
    pixels = noise(13, 29)
    stream = io.BytesIO(encode(pixels, "WEBP", lossless=True))
    np.testing.assert_array_equal(decode_image(stream, 29), pixels)


def test_result_may_be_written_to():
    decode_image(encode(noise(4, 4)), 32)[:] = 0


def test_grey_palette_and_bilevel():
    grey = noise(5, 7)[..., 0]
    grey_rgb = np.repeat(grey[..., None], 3, -1)
    np.testing.assert_array_equal(decode_image(encode(grey), 32), grey_rgb)

    palette = Image.fromarray(grey % 4).convert("P")
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7)]
    palette.putpalette(sum(colours, ()))
    expected = np.array(colours, np.uint8)[grey % 4]
    np.testing.assert_array_equal(decode_image(encode(palette), 32), expected)

    bits = Image.fromarray(grey > 99)
    assert bits.mode == "1"
    np.testing.assert_array_equal(decode_image(encode(bits), 32), (grey_rgb > 99) * 255)


def test_transparency_lies_on_white():
    pixels = noise(4, 6)
    alpha = np.zeros((4, 6, 1), np.uint8)
    alpha[:, :3] = 255
    expected = np.where(alpha > 0, pixels, 255)
    rgba = np.concatenate([pixels, alpha], -1)
    np.testing.assert_array_equal(decode_image(encode(rgba), 32), expected)
    la = Image.fromarray(np.concatenate([pixels[..., :1], alpha], -1))
    assert la.mode == "LA"
    expected_grey = np.repeat(expected[..., :1], 3, -1)
    np.testing.assert_array_equal(decode_image(encode(la), 32), expected_grey)


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 255])])
def test_transparent_palette(transparency):
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    decoded = decode_image(encode(palette, transparency=transparency), 32)
    assert decoded.tolist() == [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]


def test_16_bits_are_scaled_not_cut():
    values = np.array([[0, 257, 25700, 65535]], np.uint16)
    expected = [0, 1, 100, 255]
    for data in (encode(values), encode(values, "TIFF")):
        assert Image.open(io.BytesIO(data)).mode == "I;16"
        decoded = decode_image(data, 32)
        assert decoded[0, :, 0].tolist() == expected
        assert decoded[0, :, 2].tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
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
def test_wide_numbers_take_the_narrowest_range(values, expected):
    assert decode_image(encode(values, "TIFF"), 32)[0, :, 1].tolist() == expected


def test_cmyk_jpeg():
    pixels = ramp(24, 40)
    data = encode(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=98)
    picture = Image.open(io.BytesIO(data))
    assert picture.mode == "CMYK"
    close(decode_image(data, 64), np.asarray(picture.convert("RGB")), 1)
    close(decode_image(data, 64), pixels, 8)


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "lime", "blue")]
    for file_format in ("GIF", "WEBP"):
        options = {"lossless": True} if file_format == "WEBP" else {}
        data = encode(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
        assert (decode_image(data, 32) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_exif_orientation(orientation, file_format):
    upright = noise(5, 9)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(STORED[orientation](upright))
    data = encode(stored, file_format, exif=exif)
    np.testing.assert_array_equal(decode_image(data, 32), upright)


def test_exif_orientation_of_a_reduced_jpeg():
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = ramp(400, 800)
    data = encode(np.ascontiguousarray(np.rot90(upright, 1)), "JPEG", exif=exif, quality=95)
    close(decode_image(data, 80), ramp(40, 80), 6)


def test_broken_exif_keeps_the_picture():
    pixels = noise(5, 9)
    data = encode(pixels, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xffgarbage")
    np.testing.assert_array_equal(decode_image(data, 32), pixels)


@pytest.mark.parametrize(
    ("height", "width", "reduced"),
    [(100, 50, (40, 20)), (50, 100, (20, 40)), (40, 40, (40, 40)), (39, 3, (39, 3))],
)
def test_longer_side_fits_the_canvas(height, width, reduced):
    assert decode_image(encode(noise(height, width)), 40).shape == (*reduced, 3)


def test_a_thread_of_pixels_keeps_one():
    assert decode_image(encode(noise(1, 500)), 20).shape == (1, 20, 3)


def test_reduction_is_antialiased():
    stripes = np.zeros((64, 96, 3), np.uint8)
    stripes[:, ::2] = 255
    inner = decode_image(encode(stripes), 24)[2:-2, 2:-2]
    assert np.abs(inner.astype(int) - 128).max() <= 2


def test_drafted_jpeg_is_close_to_fair_reduction():
    pixels = ramp(1003, 1501)
    data = encode(pixels, "JPEG", quality=95)
    fair = Image.open(io.BytesIO(data)).resize((60, 40), Image.Resampling.BICUBIC)
    close(decode_image(data, 60), np.asarray(fair), 3)


def test_reducing_an_array_equals_reducing_its_file():
    pixels = noise(50, 70)
    np.testing.assert_array_equal(reduce_image(pixels, 35), decode_image(encode(pixels), 35))
    assert reduce_image(pixels, 70) is pixels


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"this is no image at all",
        encode(noise(64, 64))[:-2000],
        encode(noise(64, 64), "JPEG")[:1500],
        encode(noise(64, 64), "JPEG")[:20],
        encode(noise(64, 64), "GIF")[:1000],
        encode(noise(64, 64), "WEBP")[:500],
        encode(noise(64, 64), "BMP")[:500],
        encode(noise(64, 64), "TIFF")[:500],
        png_header(100_000, 100_000),
        png_header(14_143, 14_143),
        png_header(0, 5),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n",
    ],
)
def test_undecodable(data):
    with pytest.raises(UndecodableImage) as caught:
        decode_image(data, 32)
    assert caught.value.reason


def test_megapixels_are_counted_before_decoding(monkeypatch):
    """Also where a user has switched Pillow's own limit off."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(UndecodableImage, match="128 megapixels"):
        decode_image(png_header(12_801, 10_000), 32)
    with pytest.raises(UndecodableImage, match=r"truncated|broken|data"):
        decode_image(png_header(20_000, 10), 32)
    webp = encode(Image.new("L", (10_000, 4801)), "WEBP", quality=0, method=0)
    with pytest.raises(UndecodableImage, match="48 megapixels"):
        decode_image(webp, 32)
    baseline, progressive = (
        jpeg_claiming(encode(noise(8, 8), "JPEG", progressive=each), 20_001, 10_000)
        for each in (False, True)
    )
    with pytest.raises(UndecodableImage, match="200 megapixels"):
        decode_image(baseline, 32)
    with pytest.raises(UndecodableImage, match="128 megapixels"):
        decode_image(progressive, 32)


def test_a_stream_that_fails():
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(UndecodableImage, match="the disk is gone"):
        decode_image(Failing(), 32)


def test_place_on_canvas():
    pixels = noise(3, 5)
    canvas = place_on_canvas(pixels, 6)
    assert canvas.shape == (3, 6, 6)
    assert canvas.dtype == np.uint8
    np.testing.assert_array_equal(canvas[:, :3, :5], pixels.transpose(2, 0, 1))
    assert canvas.sum() == pixels.sum()
