"""Where photographs come from: one small protocol, and the kinds of root a user can name."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.config import DataConfig
from croc.data.folders import FolderSource
from croc.data.packed import DESCRIPTION, PackedSource
from croc.data.scenes import make_scene
from croc.data.shards import ShardSource, is_shard
from croc.errors import UserError

__all__ = [
    "ConcatSource",
    "FolderSource",
    "ImageSource",
    "PackedSource",
    "ScenesSource",
    "ShardSource",
    "open_source",
]

SCENE_PX = 96


@runtime_checkable
class ImageSource(Protocol):
    """Images by number; can be pickled, so that it reaches a loader's workers."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What to call the image in a log."""
        ...

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        """The image, reduced; raises UndecodableImage and nothing else."""
        ...


class ScenesSource:
    """Synthetic scenes, each made when first asked for and kept."""

    def __init__(self, count: int, size_px: int = SCENE_PX, seed: int = 0) -> None:
        self.size_px = size_px
        self.seed = seed
        self._images: list[UInt8[np.ndarray, "h w 3"] | None] = [None] * count

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        return f"scene {index}"

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        image = self._images[index]
        if image is None:
            image = make_scene(self.seed, index, self.size_px).image
            self._images[index] = image
        return image


class ConcatSource:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[ImageSource]) -> None:
        self.sources = tuple(sources)
        self._starts = [0, *accumulate(len(source) for source in self.sources)]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, index: int) -> str:
        source, local = self._locate(index)
        return source.name(local)

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        source, local = self._locate(index)
        return source.read(local)

    def _locate(self, index: int) -> tuple[ImageSource, int]:
        number = bisect_right(self._starts, index) - 1
        return self.sources[number], index - self._starts[number]


def open_source(config: DataConfig, seed: int) -> ImageSource:
    """The images of all roots, in the order given; neighbours of one kind are opened at once."""
    if not config.root:
        raise UserError("say where the photographs are: --data.root FOLDER")
    roots = [os.path.expanduser(root) for root in config.root]
    sources: list[ImageSource] = []
    for kind, group in groupby(roots, key=_kind):
        sources += _open_kind(kind, list(group), config, seed)
    return sources[0] if len(sources) == 1 else ConcatSource(sources)


def _kind(root: str) -> str:
    if root == "scenes":
        return "scenes"
    if os.path.isdir(root):
        return "packed" if os.path.exists(os.path.join(root, DESCRIPTION)) else "folder"
    if is_shard(root):
        return "shards"
    if os.path.exists(root):
        raise UserError(f"{root} is neither a folder nor a .tar shard: pass one as --data.root")
    raise UserError(f"{root} does not exist: pass a folder or .tar shards as --data.root")


def _open_kind(kind: str, roots: list[str], config: DataConfig, seed: int) -> list[ImageSource]:
    if kind == "scenes":
        size_px = min(SCENE_PX, config.canvas_px)
        return [ScenesSource(config.scenes, size_px, seed) for _ in roots]
    if kind == "shards":
        return [ShardSource(roots, config.canvas_px)]
    if kind == "packed":
        return [PackedSource(root, config.canvas_px) for root in roots]
    folders = [folder for root in roots for folder in _chosen(root, config.subfolders)]
    return [FolderSource(folders, config.canvas_px)]


def _chosen(root: str, subfolders: tuple[str, ...]) -> list[str]:
    """The subfolders if the root has any of them, else the root itself."""
    paths = [os.path.join(root, name) for name in subfolders]
    missing = [path for path in paths if not os.path.isdir(path)]
    if len(missing) == len(paths):
        return [root]
    if missing:
        raise UserError(
            f"this recipe needs {' and '.join(missing)} too: put the photographs there, "
            f"or choose others with --data.subfolders"
        )
    return paths
