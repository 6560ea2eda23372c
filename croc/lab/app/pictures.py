"""The photographs that the explorer holds: some scenes of its own, and the last few uploads."""

import io
import secrets
import threading
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from croc.data import UndecodableImage, decode_image, place_on_canvas
from croc.data.scenes import make_scene
from croc.lab.app.recent import Recent
from croc.lab.app.refusal import Refusal

MOST_UPLOADS = 8
MOST_BYTES = 32 << 20
MOST_MEGAPIXELS = 50
LONGER_PX = 768
"""A photograph is reduced to this: enough for small crops of it, and quick to crop."""
LEAST_PX = 32
LONGEST_NAME = 80

SCENES = ((7, 10), (7, 17), (7, 14), (7, 4), (7, 1), (7, 8))
"""(seed, index) of scenes with objects and stuff that are easy to tell apart."""
SCENE_PX = 384
# As in croc.data.decode: formats that start other programs are left out.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")


@dataclass(frozen=True)
class Picture:
    """A photograph in the corner of its canvas, and as the browser gets it."""

    id: str
    name: str
    canvas: UInt8[Tensor, "3 S S"]
    height: int
    width: int
    jpeg: bytes

    def describe(self) -> dict[str, object]:
        return {"id": self.id, "name": self.name, "width": self.width, "height": self.height}


class Pictures:
    """Asked by the server's thread and the worker's."""

    def __init__(self) -> None:
        self.scenes = [_scene(number, *which) for number, which in enumerate(SCENES)]
        self._by_id = {scene.id: scene for scene in self.scenes}
        self._uploads: Recent[str, Picture] = Recent(MOST_UPLOADS)
        self._lock = threading.Lock()

    def get(self, picture: str) -> Picture:
        with self._lock:
            found = self._by_id.get(picture) or self._uploads.get(picture)
        if found is None:
            raise Refusal("That photograph is no longer held: choose it again.", 404)
        return found

    def add(self, data: bytes, name: str) -> Picture:
        """An upload, decoded; whatever its bytes are, a picture or a refusal."""
        picture = _picture(secrets.token_hex(8), shown_name(name), decode_upload(data))
        with self._lock:
            return self._uploads.put(picture.id, picture)


def shown_name(name: str) -> str:
    """For the page alone, never for a path; signs that turn or hide text are left out."""
    kept = "".join(letter for letter in name if letter.isprintable()).strip()
    return kept[:LONGEST_NAME] or "photograph"


def decode_upload(data: bytes) -> UInt8[np.ndarray, "h w 3"]:
    """Refused by what its header claims before any pixel is decoded."""
    if not data:
        raise Refusal("That file is empty.", 400)
    if len(data) > MOST_BYTES:
        raise Refusal(f"That file is larger than {MOST_BYTES >> 20} MB.", 413)
    width, height = _claimed_size(data)
    if width * height > MOST_MEGAPIXELS * 1_000_000:
        raise Refusal(f"That picture has more than {MOST_MEGAPIXELS} megapixels.", 413)
    try:
        image = decode_image(data, LONGER_PX)
    except UndecodableImage:
        raise Refusal("That picture is broken: it cannot be decoded.", 422) from None
    if min(image.shape[:2]) < LEAST_PX:
        raise Refusal(f"That picture is too small or narrow: {LEAST_PX} px at least.", 422)
    return image


def _claimed_size(data: bytes) -> tuple[int, int]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return image.size
    except Image.DecompressionBombError:
        raise Refusal(f"That picture has more than {MOST_MEGAPIXELS} megapixels.", 413) from None
    except Exception:  # on broken files Pillow raises nearly every type there is
        raise Refusal("That file is no picture that can be read.", 415) from None


def _scene(number: int, seed: int, index: int) -> Picture:
    name = f"scene {number + 1}"
    return _picture(f"scene-{number}", name, make_scene(seed, index, SCENE_PX).image)


def _picture(identity: str, name: str, image: UInt8[np.ndarray, "h w 3"]) -> Picture:
    height, width, _ = image.shape
    canvas = torch.from_numpy(place_on_canvas(image, max(height, width)))
    return Picture(identity, name, canvas, height, width, _to_jpeg(image))


def _to_jpeg(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=93, subsampling=0)
    return file.getvalue()
