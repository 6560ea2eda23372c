"""The photographs that the explorer can show: some scenes of its own, and the last uploads."""

import io
import secrets
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from croc.data import decode_image, place_on_canvas
from croc.data.scenes import make_scene

MAX_UPLOADS = 8
MAX_BYTES = 32 << 20
MAX_MEGAPIXELS = 50
LONGER_PX = 768
"""Uploads are reduced to this: enough for small crops, and quick to crop."""
MIN_PX = 32
MAX_NAME_LETTERS = 80
SCENES = (10, 17, 14, 4, 1, 8)
"""Indices (of seed 7) of scenes whose objects are easy to tell apart."""
# As in croc.data.decode: no formats for which Pillow starts other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")


@dataclass(frozen=True, eq=False)
class Picture:
    """A photograph in the corner of a square canvas, and as the browser gets it."""

    id: str
    name: str
    canvas: UInt8[Tensor, "3 S S"]
    height: int
    width: int
    jpeg: bytes

    def describe(self) -> dict[str, object]:
        return {"id": self.id, "name": self.name, "width": self.width, "height": self.height}


def to_picture(identity: str, name: str, image: UInt8[np.ndarray, "h w 3"]) -> Picture:
    height, width, _ = image.shape
    canvas = torch.from_numpy(place_on_canvas(image, max(height, width)))
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=93, subsampling=0)
    return Picture(identity, name, canvas, height, width, file.getvalue())


def make_scenes() -> dict[str, Picture]:
    images = {f"scene-{n}": make_scene(7, index, 384).image for n, index in enumerate(SCENES)}
    return {
        identity: to_picture(identity, f"scene {n}", image)
        for n, (identity, image) in enumerate(images.items(), start=1)
    }


def find_picture(pictures: dict[str, Picture], identity: str) -> Picture:
    if identity not in pictures:
        raise HTTPException(404, "That photograph is no longer available: upload it again.")
    return pictures[identity]


def read_upload(data: bytes, name: str) -> Picture:
    """A picture or an HTTPException, whatever the bytes are; the size in the header is checked
    before any pixel is decoded. The name is only shown, without letters that hide text."""
    too_large = HTTPException(413, f"That picture has more than {MAX_MEGAPIXELS} megapixels.")
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(data), formats=FORMATS) as image,
        ):
            if image.width * image.height > MAX_MEGAPIXELS * 1_000_000:
                raise too_large
        pixels = decode_image(data, LONGER_PX)
    except (HTTPException, Image.DecompressionBombError):
        raise too_large from None
    except Exception:  # on broken files Pillow raises nearly every type there is
        raise HTTPException(415, "That file cannot be read as a picture.") from None
    if min(pixels.shape[:2]) < MIN_PX:
        raise HTTPException(422, f"That picture is too small or narrow: {MIN_PX} px at least.")
    shown = "".join(letter for letter in name if letter.isprintable()).strip()
    return to_picture(secrets.token_hex(8), shown[:MAX_NAME_LETTERS] or "photograph", pixels)
