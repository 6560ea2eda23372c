"""The images to segment, from folders and files, and the name of each one's mask."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.decode import WHOLE_PX, UndecodableImage, decode_image
from croc.data.sources import is_image, walk_images
from croc.errors import UserError
from croc.segmentation.segmenter import resize_as_evaluated


@dataclass(frozen=True)
class Photo:
    path: Path
    name: str
    """Name of its mask, without .png: its path relative to the folder that all images share."""


def list_photos(sources: Sequence[str], outside: Path) -> tuple[list[Photo], str]:
    """All images in the folders, at any depth, and the files, except those below `outside`, where
    masks of an earlier call may be; and the folder that all share."""
    paths: dict[Path, None] = {}
    tops = []
    for source in map(os.path.expanduser, sources):
        path = Path(os.path.abspath(source))
        if path.is_dir():
            inside = (Path(os.fsdecode(name)) for name in sorted(walk_images(os.fsencode(path))))
            paths |= dict.fromkeys(each for each in inside if not each.is_relative_to(outside))
            tops.append(path)
        elif path.is_file() and is_image(os.fsencode(path.name)):
            paths[path] = None
            tops.append(path.parent)
        else:
            problem = "is not an image file" if path.exists() else "does not exist"
            raise UserError(f"{source} {problem}: pass folders or image files")
    if not paths:
        raise UserError(f"no images in {', '.join(sources)} (searched at any depth)")
    root = os.path.commonpath(tops)
    bare = {path: path.relative_to(root).with_suffix("").as_posix() for path in paths}
    count = Counter(name.lower() for name in bare.values())  # some file systems ignore case
    return [
        Photo(path, path.relative_to(root).as_posix() if count[name.lower()] > 1 else name)
        for path, name in bare.items()
    ], root


@dataclass(frozen=True)
class Loaded:
    """A photograph that was read; the network's input is None if it is cut into tiles, the image
    None if only its size is needed."""

    photo: Photo
    size: tuple[int, int]
    pixels: UInt8[Tensor, "3 h w"] | None
    image: UInt8[np.ndarray, "H W 3"] | None


@dataclass(frozen=True, eq=False)
class Reader(Dataset[Loaded | Photo]):
    """Photographs for worker processes, resized; one that cannot be decoded comes back as it is."""

    photos: Sequence[Photo]
    image_px: int
    unit_px: int | None = None
    tiled: bool = False
    whole: bool = False
    """Whether the image itself is needed."""

    def __getitem__(self, index: int) -> Loaded | Photo:
        photo = self.photos[index]
        try:
            with photo.path.open("rb") as stream:
                image = decode_image(stream, WHOLE_PX)
        except (UndecodableImage, OSError):
            return photo
        pixels = None if self.tiled else resize_as_evaluated(image, self.image_px, self.unit_px)
        return Loaded(photo, image.shape[:2], pixels, image if self.whole or self.tiled else None)
