"""From the bytes of an image file to downscaled RGB pixels: an array, or UndecodableImage."""

import contextlib
import errno
import io
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm")

# Explicit, because Pillow would otherwise also try formats that start other programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
# A small file can claim any size. A baseline JPEG is decoded row by row; other formats are
# completely in memory (4 bytes per pixel and worker), and Pillow's WebP keeps three copies.
# Pillow opens nothing above 178.9 megapixels.
_MAX_MEGAPIXELS, _MAX_WHOLE_MEGAPIXELS, _MAX_WEBP_MEGAPIXELS = 178, 128, 48
# Large images are first reduced by whole factors, to no less than GAP times the final size, so
# that the final pixels come from the bicubic filter and not from blocks.
GAP = 2
WHOLE_PX = 1 << 16  # longer than any photograph: none is downscaled
_BAND_PIXELS = 1 << 22  # of a large image that are converted at once
_EXIF_ORIENTATION = 0x0112

Size = tuple[int, int]  # width and height
Extent = tuple[float | int, float | int]  # the same, perhaps with a fraction of a pixel
Stream = io.BytesIO | io.BufferedReader


STORAGE_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
"""Of an `OSError`: faults of a disk or a network file system, which may pass."""


class UndecodableImage(Exception):  # noqa: N818, reads better where it is caught
    """The only exception that reading an image raises, apart from faults of the storage."""


def decode_image(data: bytes | Stream, canvas_px: int) -> UInt8[np.ndarray, "h w 3"]:
    """The upright image in RGB, its longer side at most `canvas_px`."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        # Pillow warns about odd but readable files, such as a broken EXIF block.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(stream, formats=_FORMATS) as image,
        ):
            pixels, turn = _decode(image, stream, canvas_px), 1
            with contextlib.suppress(Exception):  # a broken EXIF block does not spoil the pixels
                turn = image.getexif().get(_EXIF_ORIENTATION, 1)
        pixels = pixels.swapaxes(0, 1) if turn in (5, 6, 7, 8) else pixels
        down, across = (-1 if turn in flips else 1 for flips in ((3, 4, 7, 8), (2, 3, 6, 7)))
        return np.ascontiguousarray(pixels[::down, ::across])
    except UndecodableImage:
        raise
    except UnidentifiedImageError as error:
        raise UndecodableImage("not an image") from error
    except Exception as error:  # on broken files Pillow raises nearly every type there is
        if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
            raise
        raise UndecodableImage(f"{type(error).__name__}: {error}") from error


def place_on_canvas(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "3 S S"]:
    """The image in the top left corner of a square of zeros, channels first."""
    canvas = np.empty((3, canvas_px, canvas_px), np.uint8)
    fill_canvas(canvas, image)
    return canvas


def fill_canvas(canvas: UInt8[np.ndarray, "3 S S"], image: UInt8[np.ndarray, "h w 3"]) -> None:
    """Write the image into the top left corner of a canvas, and zeros elsewhere."""
    height, width, _ = image.shape
    canvas[:, height:] = 0
    canvas[:, :height, width:] = 0
    canvas[:, :height, :width] = image.transpose(2, 0, 1)


def fitting_size(size: Size, canvas_px: int) -> Size:
    """The size at which the longer side fits the canvas; smaller images keep theirs."""
    if max(size) <= canvas_px:
        return size
    width, height = (max(1, round(side * canvas_px / max(size))) for side in size)
    return width, height


def downscale_image(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "H W 3"]:
    """The image if it fits the canvas, else downscaled exactly as by `decode_image`."""
    height, width, _ = image.shape
    if max(height, width) <= canvas_px:
        return image
    picture = Image.fromarray(np.ascontiguousarray(image))
    size = fitting_size(picture.size, canvas_px)
    return _downscale(picture, size, picture.size, lambda part: part)


def resample(
    pixels: UInt8[np.ndarray, "h w 3"], size: Size, extent: Extent
) -> UInt8[np.ndarray, "H W 3"]:
    """The region (0, 0, *extent), which may end within the last pixel, at `size`.

    torch's antialiased bicubic filter for 8 bits is several times as fast as Pillow's.
    """
    # torch rounds height × scale down, which must not lose a pixel if it is just below an integer.
    scales = tuple(side / part * (1 + 1e-9) for side, part in zip(size, extent))
    planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(planes, scale_factor=scales[::-1], mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def _downscale(
    image: Image.Image, size: Size, extent: Extent, to_rgb: Callable[[Image.Image], Image.Image]
) -> UInt8[np.ndarray, "H W 3"]:
    """A new RGB array. A large image is converted in bands, to save memory."""
    if image.size == size:
        return np.array(to_rgb(image))
    across, down = (max(1, int(part / side / GAP)) for part, side in zip(extent, size))
    if max(across, down) == 1:
        return resample(np.array(to_rgb(image)), size, extent)
    coarse = [np.array(to_rgb(band).reduce((across, down))) for band in _bands(image, down)]
    return resample(np.concatenate(coarse), size, (extent[0] / across, extent[1] / down))


def _bands(image: Image.Image, rows: int = 1) -> Iterator[Image.Image]:
    """Horizontal parts from top to bottom, of a height that is a multiple of `rows`."""
    width, height = image.size
    step = max(1, _BAND_PIXELS // (width * rows)) * rows
    for top in range(0, height, step):
        yield image.crop((0, top, width, min(top + step, height)))


def _decode(image: Image.Image, stream: Stream, canvas_px: int) -> UInt8[np.ndarray, "H W 3"]:
    width, height = full = image.size
    if width < 1 or height < 1:
        raise UndecodableImage(f"no pixels: {width}×{height}")
    limit = _MAX_WEBP_MEGAPIXELS if image.format == "WEBP" else _MAX_WHOLE_MEGAPIXELS
    if image.format == "JPEG" and "progressive" not in image.info:
        limit = _MAX_MEGAPIXELS
    if width * height > limit * 1_000_000:
        raise UndecodableImage(f"more than {limit} megapixels: {width}×{height}")

    size = fitting_size(full, canvas_px)
    drafted = image.draft(None, (GAP * size[0], GAP * size[1]))  # a JPEG at 1/2, 1/4 or 1/8
    if drafted is None:
        image.load()  # TIFFs turn upright as they load, so only now is their size known
        return _downscale(image, fitting_size(image.size, canvas_px), image.size, to_rgb(image))
    if image.size == full:
        # torchvision needs two thirds of Pillow's time for the same pixels.
        stream.seek(0)
        data, planes = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8), None
        with contextlib.suppress(RuntimeError):  # broken: Pillow will give the reason
            planes = decode_jpeg(data, ImageReadMode.RGB)
        if isinstance(planes, Tensor) and planes.shape[:0:-1] == full:  # else the header is forged
            pixels = planes.permute(1, 2, 0).numpy()
            return pixels if full == size else resample(pixels, size, full)
    return _downscale(image, size, drafted[1][2:], to_rgb(image))


def to_rgb(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """A function that converts any part of this image to RGB."""
    if image.mode.startswith(("I", "F")):
        # The narrowest common range that holds all values, else their own range.
        ranges = [(part.min(), part.max()) for part in map(_finite, _bands(image))]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        tops = {"F": (1, 255, 65535), "I": (255, 65535)}.get(image.mode, (65535,))
        fitting = [top for top in tops if low >= 0 and high <= top]
        low, high = (0.0, float(fitting[0])) if fitting else (low, high)
        scale = 255 / ((high - low) or 1)
        return lambda part: Image.fromarray(
            np.round((_finite(part) - low) * scale).astype(np.uint8)
        ).convert("RGB")
    if image.has_transparency_data:  # on white: colors under full transparency are arbitrary
        return lambda part: Image.alpha_composite(
            Image.new("RGBA", part.size, "white"), part.convert("RGBA")
        ).convert("RGB")
    return lambda part: part.convert("RGB")


def _finite(part: Image.Image) -> Float64[np.ndarray, "h w"]:
    return np.nan_to_num(np.asarray(part).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
