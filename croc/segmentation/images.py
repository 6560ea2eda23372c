"""The images to segment, from folders and files, and the name of each one's mask."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.decode import WHOLE_PX, UndecodableImage, decode_image, downscale_image
from croc.data.sources import is_image, walk_images
from croc.errors import UserError
from croc.eval.features import resize_image
from croc.tables import one_line


@dataclass(frozen=True)
class ImageFile:
    path: Path
    name: str
    """Name of its mask, without .png: its path relative to the folder that all images share."""
    problem: str = field(default="", compare=False)
    """Why it cannot be decoded."""


def list_images(sources: Sequence[str], exclude: Path) -> tuple[list[ImageFile], str]:
    """Return the images (folders are searched recursively) and their common root. Files below
    `exclude`, the output folder, are left out, whichever path leads to them: it may contain masks
    of an earlier run."""
    if not sources:
        raise UserError("pass image folders or files as IMAGES")
    paths: dict[Path, None] = {}
    tops = []
    real, output = cache(os.path.realpath), os.path.realpath(exclude)
    for source in map(os.path.expanduser, sources):
        path = Path(os.path.abspath(source))
        if path.is_dir():
            for file in map(Path, map(os.fsdecode, sorted(walk_images(os.fsencode(path))))):
                if not Path(real(file.parent)).is_relative_to(output):
                    paths[file] = None
            tops.append(path)
        elif path.is_file() and is_image(os.fsencode(path.name)):
            paths[path] = None
            tops.append(path.parent)
        else:
            problem = "is not an image file" if path.exists() else "does not exist"
            raise UserError(f"{source} {problem}: pass folders or image files")
    if not paths:
        raise UserError(f"no images in {', '.join(sources)} (searched recursively)")
    root = os.path.commonpath(tops)
    full = {path: path.relative_to(root).as_posix() for path in paths}
    names = {path: os.path.splitext(name)[0] for path, name in full.items()}
    while True:  # a.jpg and a.png keep their ends, so a.jpg.png must, too
        count = Counter(map(str.lower, names.values()))  # some file systems ignore case
        shared = {
            path: full[path]
            for path, name in names.items()
            if count[name.lower()] > 1 and name != full[path]
        }
        if not shared:
            return [ImageFile(path, name) for path, name in names.items()], root
        names |= shared


@dataclass(frozen=True)
class Loaded:
    """A decoded image of this size; `pixels`, the network's input, is None if the image is cut into
    tiles. `image` is for overlays and filters, perhaps smaller, and None if nothing needs it."""

    file: ImageFile
    size: tuple[int, int]
    pixels: UInt8[Tensor, "3 h w"] | None
    image: UInt8[np.ndarray, "H W 3"] | None


@dataclass(frozen=True, eq=False)
class Reader(Dataset[Loaded | ImageFile]):
    """Reads and resizes images in worker processes; one that cannot be decoded is returned as its
    ImageFile, not as a Loaded."""

    files: Sequence[ImageFile]
    image_px: int
    unit_px: int | None = None
    tiled: bool = False
    shown_px: int | None = None
    """To return the image itself, too: its maximum length, unless it is cut into tiles."""

    def __getitem__(self, index: int) -> Loaded | ImageFile:
        file = self.files[index]
        try:
            with file.path.open("rb") as stream:
                image = decode_image(stream, WHOLE_PX)
        except (UndecodableImage, OSError) as error:
            return replace(file, problem=one_line(str(error)))
        pixels = None if self.tiled else resize_image(image, self.image_px, self.unit_px)
        shown_px = WHOLE_PX if self.tiled else self.shown_px
        shown = downscale_image(image, shown_px) if shown_px else None
        return Loaded(file, image.shape[:2], pixels, shown)
