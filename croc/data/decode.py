"""From a file's bytes to RGB pixels: whatever it holds, one array or one exception."""

import io
import warnings

import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm")

# Named, because Pillow would otherwise also try formats that start other programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
# Pillow itself stops at 179; this holds where a program has lifted that limit.
_LARGEST_MEGAPIXELS = 200
# JPEGs are decoded at 1/2, 1/4 or 1/8 as long as this many times the final size remains, so
# that the bicubic filter, not the JPEG's blocks, makes the final pixels.
_GAP = 2
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
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
                return np.array(_reduced_rgb(image, canvas_px))
    except UndecodableImage:
        raise
    except Exception as error:  # on broken files Pillow raises nearly every type there is
        raise UndecodableImage(f"{type(error).__name__}: {error}") from error


def reduce_image(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "rows columns 3"]:
    """The same picture if it fits the canvas, else reduced as `decode_image` would."""
    if max(image.shape[:2]) <= canvas_px:
        return image
    picture = Image.fromarray(image)
    return np.array(_resize(picture, _fitting(picture.size, canvas_px)))


def place_on_canvas(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "3 S S"]:
    """The picture in the top-left corner of a square of zeros, channels first."""
    canvas = np.zeros((3, canvas_px, canvas_px), np.uint8)
    fill_canvas(canvas, image)
    return canvas


def fill_canvas(canvas: UInt8[np.ndarray, "3 S S"], image: UInt8[np.ndarray, "h w 3"]) -> None:
    """Writes the picture into the top-left corner of a canvas that is there already."""
    height, width, _ = image.shape
    canvas[:, :height, :width] = image.transpose(2, 0, 1)


def _reduced_rgb(image: Image.Image, canvas_px: int) -> Image.Image:
    _check_size(image.size)
    size = _fitting(image.size, canvas_px)
    drafted = image.draft(None, (_GAP * size[0], _GAP * size[1]))
    rgb = _to_rgb(image)
    if drafted is None:  # TIFFs turn upright as they load, so only now is the size known
        reduced = _resize(rgb, _fitting(rgb.size, canvas_px))
    else:
        _, _, right, bottom = drafted[1]
        reduced = _resize(rgb, size, box=(0.0, 0.0, right, bottom))
    turn = _TURNS.get(_orientation(image))
    return reduced if turn is None else reduced.transpose(turn)


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise UndecodableImage(f"no pixels: {width}×{height}")
    if width * height > _LARGEST_MEGAPIXELS * 1_000_000:
        raise UndecodableImage(f"more than {_LARGEST_MEGAPIXELS} megapixels: {width}×{height}")


def _fitting(size: tuple[int, int], canvas_px: int) -> tuple[int, int]:
    longer = max(size)
    if longer <= canvas_px:
        return size
    width, height = (max(1, round(side * canvas_px / longer)) for side in size)
    return width, height


def _resize(
    image: Image.Image,
    size: tuple[int, int],
    box: tuple[float, float, float, float] | None = None,
) -> Image.Image:
    if image.size == size:
        return image
    return image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=_GAP)


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken EXIF block says nothing about the pixels
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        # As a viewer shows it on a white page: colours under full transparency are arbitrary.
        picture = image.convert("RGBA")
        page = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(page, picture).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(values: Num[np.ndarray, "h w"], mode: str) -> UInt8[np.ndarray, "h w"]:
    """Scaled from the narrowest usual range that holds the values, else from their own."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = finite.min(), finite.max()
    tops = {"F": (1, 255, 65535), "I": (255, 65535)}.get(mode, (65535,))
    fitting = [top for top in tops if low >= 0 and high <= top]
    if fitting:
        low, high = 0, fitting[0]
    span = (high - low) or 1
    return np.round((finite - low) * (255 / span)).astype(np.uint8)
