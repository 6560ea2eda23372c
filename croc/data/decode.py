"""From a file's bytes to RGB pixels: whatever it holds, one array or one exception."""

import io
import warnings
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from croc.data.reduce import GAP, Size, bands, fitting_size, reduce_picture, resample

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm")

# Named, because Pillow would otherwise also try formats that start other programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
# Pillow itself stops at 179; this holds where a program has lifted that limit.
_LARGEST_MEGAPIXELS = 200
# What has to be whole in memory takes four bytes a pixel of each worker, and a small file can
# claim any size. Pillow's WebP keeps three such pictures.
_LARGEST_WHOLE_MEGAPIXELS, _LARGEST_WEBP_MEGAPIXELS = 128, 48
# A longer file is odd for a small picture, and Pillow does not hold it at once.
_LARGEST_FAST_JPEG_BYTES = 1 << 25
_ORIENTATION_TAG = 0x0112
# From the stored picture to the upright one.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


class UndecodableImage(Exception):  # noqa: N818, a noun reads better where it is caught
    """A file that gives no picture; the only exception that reading an image raises."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode_image(
    data: bytes | io.BytesIO | io.BufferedReader, canvas_px: int
) -> UInt8[np.ndarray, "h w 3"]:
    """The upright picture in RGB, its longer side at most `canvas_px`."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        # Pillow warns about odd but readable files, such as a broken EXIF block.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(stream, formats=_FORMATS) as image:
                reduced = _reduced_rgb(image, stream, canvas_px)
                turn = _TURNS.get(_orientation(image))
                return reduced if turn is None else np.ascontiguousarray(turn(reduced))
    except UndecodableImage:
        raise
    except Exception as error:  # on broken files Pillow raises nearly every type there is
        raise UndecodableImage(f"{type(error).__name__}: {error}") from error


def place_on_canvas(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "3 S S"]:
    """The picture in the top-left corner of a square of zeros, channels first."""
    canvas = np.empty((3, canvas_px, canvas_px), np.uint8)
    fill_canvas(canvas, image)
    return canvas


def fill_canvas(canvas: UInt8[np.ndarray, "3 S S"], image: UInt8[np.ndarray, "h w 3"]) -> None:
    """Writes the picture into the top-left corner of a canvas in use, and zeros beside it."""
    height, width, _ = image.shape
    canvas[:, height:] = 0
    canvas[:, :height, width:] = 0
    canvas[:, :height, :width] = image.transpose(2, 0, 1)


def _reduced_rgb(
    image: Image.Image, stream: io.BytesIO | io.BufferedReader, canvas_px: int
) -> UInt8[np.ndarray, "rows columns 3"]:
    _check_size(image.size, _largest_megapixels(image))
    whole, size = image.size, fitting_size(image.size, canvas_px)
    drafted = image.draft(None, (GAP * size[0], GAP * size[1]))  # a JPEG at 1/2, 1/4 or 1/8
    if drafted is None:  # TIFFs turn upright as they load, so only now is the size known
        image.load()
        return reduce_picture(
            image, fitting_size(image.size, canvas_px), image.size, _to_rgb(image)
        )
    pixels = _fast_jpeg(stream) if image.size == whole else None
    if pixels is None or pixels.shape[1::-1] != whole:  # two readings of a forged header
        return reduce_picture(image, size, drafted[1][2:], _to_rgb(image))
    return pixels if whole == size else resample(pixels, size, whole)


def _fast_jpeg(stream: io.BytesIO | io.BufferedReader) -> UInt8[np.ndarray, "h w 3"] | None:
    """The pixels that Pillow would give, in two thirds of its time; None leaves them to it."""
    stream.seek(0)
    data = bytearray(stream.read(_LARGEST_FAST_JPEG_BYTES))
    if len(data) == _LARGEST_FAST_JPEG_BYTES:
        return None
    try:
        planes = decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), ImageReadMode.RGB)
    except RuntimeError:  # broken: Pillow will say how
        return None
    return cast(Tensor, planes).permute(1, 2, 0).numpy()


def _largest_megapixels(image: Image.Image) -> int:
    if image.format == "WEBP":
        return _LARGEST_WEBP_MEGAPIXELS
    by_rows = image.format == "JPEG" and "progressive" not in image.info
    return _LARGEST_MEGAPIXELS if by_rows else _LARGEST_WHOLE_MEGAPIXELS


def _check_size(size: Size, largest: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise UndecodableImage(f"no pixels: {width}×{height}")
    if width * height > largest * 1_000_000:
        raise UndecodableImage(f"more than {largest} megapixels: {width}×{height}")


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken EXIF block says nothing about the pixels
        return 1


def _to_rgb(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """How any part of this picture becomes RGB."""
    if image.mode.startswith(("I", "F")):
        low, high = _range_to_show(image)
        return lambda part: Image.fromarray(_to_8_bits(part, low, high)).convert("RGB")
    if image.has_transparency_data:
        return _on_white
    return lambda part: part.convert("RGB")


def _on_white(part: Image.Image) -> Image.Image:
    """As a viewer shows it on a white page: colours under full transparency are arbitrary."""
    picture = part.convert("RGBA")
    page = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(page, picture).convert("RGB")


def _range_to_show(image: Image.Image) -> tuple[float, float]:
    """The narrowest usual range that holds the values, else their own."""
    ranges = [(part.min(), part.max()) for part in map(_finite, bands(image))]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    tops = {"F": (1, 255, 65535), "I": (255, 65535)}.get(image.mode, (65535,))
    fitting = [top for top in tops if low >= 0 and high <= top]
    return (0.0, float(fitting[0])) if fitting else (low, high)


def _to_8_bits(part: Image.Image, low: float, high: float) -> UInt8[np.ndarray, "h w"]:
    span = (high - low) or 1
    return np.round((_finite(part) - low) * (255 / span)).astype(np.uint8)


def _finite(part: Image.Image) -> Float64[np.ndarray, "h w"]:
    return np.nan_to_num(np.asarray(part).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
