"""Videos with object masks for the evaluations: `open_videos("davis17:~/data/DAVIS")`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import UInt8

from croc.data.scenes import make_video
from croc.errors import UserError
from croc.eval.files import Files, scene_count, split_spec
from croc.eval.metrics import IGNORED
from croc.tables import count_noun

SCENE_PX = 96
SCENE_VIDEOS = 8
SCENE_FRAMES = 12
_SCENE_SEED = 2**32 + 2  # the labeled scenes have the two before
_FRAMES, _MASKS = "JPEGImages/480p", "Annotations/480p"


@dataclass(frozen=True)
class Video:
    """Frames and the object at each pixel."""

    name: str
    length: int
    read_frame: Callable[[int], UInt8[np.ndarray, "h w 3"]]
    read_mask: Callable[[int], UInt8[np.ndarray, "h w"]]
    """Objects count from 1, the background is 0."""

    def __len__(self) -> int:
        return self.length


def open_videos(spec: str) -> tuple[Video, ...]:
    """The videos of "davis17:PATH", "davis16:PATH" (a folder or a .tar) or "scenes[:COUNT]"."""
    kind, path = split_spec(spec, ("davis17", "davis16", "scenes"))
    if kind == "scenes":
        return tuple(map(_scene_video, range(scene_count(path, SCENE_VIDEOS))))
    files = Files(path, ("DAVIS",))
    names = files.children(_FRAMES)
    lists = {"davis17": ["2017"], "davis16": ["2016", "480p"]}[kind]
    for name in filter(files.has, (f"ImageSets/{year}/val.txt" for year in lists)):
        # 2016's own list has every frame: /JPEGImages/480p/SEQUENCE/00000.jpg
        paths = [PurePosixPath(line.split()[0]) for line in files.read_lines(name)]
        names = list(dict.fromkeys(path.parent.name or str(path) for path in paths))
        break
    return tuple(_davis_video(files, name, kind == "davis16") for name in names)


def _scene_video(index: int) -> Video:
    scenes = cache(lambda: make_video(_SCENE_SEED, index, SCENE_FRAMES, SCENE_PX))
    return Video(
        name=f"scene {index}",
        length=SCENE_FRAMES,
        read_frame=lambda t: scenes()[t].image,
        read_mask=lambda t: scenes()[t].instances,
    )


def _davis_video(files: Files, name: str, single: bool) -> Video:
    """A sequence of DAVIS; `single` merges all objects, as the 2016 task does."""
    frames, masks = (files.images(f"{folder}/{name}") for folder in (_FRAMES, _MASKS))
    if len(frames) < 3:
        raise UserError(
            f"{files.path(f'{_FRAMES}/{name}')} has {count_noun(len(frames), 'frame')}, too few: "
            "the first and the last are not scored"
        )
    stems = list(frames)
    for stem in stems:
        if stem not in masks:
            raise files.missing(f"{_MASKS}/{name}/{stem}.png")

    def read_frame(t: int) -> UInt8[np.ndarray, "h w 3"]:
        return files.read_rgb(f"{_FRAMES}/{name}/{frames[stems[t]]}")

    def read_mask(t: int) -> UInt8[np.ndarray, "h w"]:
        path = f"{_MASKS}/{name}/{masks[stems[t]]}"
        if single:  # some copies store the binary masks with three channels
            return np.asarray(files.read_colors(path).any(axis=2)).astype(np.uint8)
        mask = files.read_indices(path)
        return np.where(mask == IGNORED, 0, mask).astype(np.uint8)

    return Video(name, len(stems), read_frame, read_mask)
