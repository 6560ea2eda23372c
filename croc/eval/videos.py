"""Videos with object masks for the evaluations: `open_videos("davis17:~/data/DAVIS")`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import UInt8

from croc.data.scenes import Scene, make_video
from croc.errors import UserError
from croc.eval.files import Files, Missing

SCENE_PX = 96
SCENE_VIDEOS = 8
SCENE_FRAMES = 12
_SCENE_SEED = 2**32 + 2  # the labelled scenes have the two before
_DAVIS_HELP = "get the trainval archive at 480p from the DAVIS site (davischallenge.org)"


class Video(ABC):
    """Frames and, at least for the first one, the object at each pixel."""

    name: str

    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]: ...
    @abstractmethod
    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        """Objects count from 1, the background is 0."""

    def has_mask(self, t: int) -> bool:
        return 0 <= t < len(self)

    def objects(self) -> tuple[int, ...]:
        """The objects to track: those in the first frame."""
        return tuple(number for number in np.unique(self.read_mask(0)).tolist() if number)


@dataclass(frozen=True)
class DavisVideo(Video):
    """A sequence of DAVIS; `single` merges all objects, as the 2016 task does."""

    files: Files
    name: str
    stems: tuple[str, ...]
    masked: frozenset[str]
    single: bool

    def __len__(self) -> int:
        return len(self.stems)

    def has_mask(self, t: int) -> bool:
        return self.stems[t] in self.masked

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]:
        return self.files.read_rgb(f"JPEGImages/480p/{self.name}/{self.stems[t]}.jpg")

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        frame = f"JPEGImages/480p/{self.name}/{self.stems[t]}.jpg"
        name = f"Annotations/480p/{self.name}/{self.stems[t]}.png"
        if self.single:  # some copies store the binary masks with three channels
            mask = np.asarray(self.files.read_rgb(name).any(axis=2)).astype(np.uint8)
        else:
            mask = self.files.read_indices(name)
            mask[mask == 255] = 0
        width, height = self.files.open_image(frame, load=False).size
        self.files.check_same_size(frame, (height, width), name, mask.shape)
        return mask


@dataclass(frozen=True)
class SceneVideo(Video):
    """A synthetic video; every frame has its mask."""

    name: str
    index: int

    def __len__(self) -> int:
        return SCENE_FRAMES

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]:
        return _scene_video(self.index)[t].image

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        return _scene_video(self.index)[t].instances


@lru_cache(maxsize=4)
def _scene_video(index: int) -> list[Scene]:
    return make_video(_SCENE_SEED, index, SCENE_FRAMES, SCENE_PX)


def open_videos(spec: str) -> tuple[Video, ...]:
    """The videos of "davis17:PATH", "davis16:PATH" (a folder or a .tar) or "scenes[:COUNT]"."""
    kind, path = split_spec(spec, ("davis17", "davis16", "scenes"))
    if kind == "scenes":
        count = scene_count(path, SCENE_VIDEOS)
        return tuple(SceneVideo(f"scene {index}", index) for index in range(count))
    try:
        files = Files(path, ("DAVIS",), "JPEGImages")
        names = _davis_sequences(files, "20" + kind[-2:])
        return tuple(_davis_video(files, name, single=kind == "davis16") for name in names)
    except Missing as error:
        raise Missing(error.path, _DAVIS_HELP) from None


def _davis_sequences(files: Files, year: str) -> list[str]:
    """Those in the year's val.txt, or all if there is none."""
    lists = [f"ImageSets/{year}/val.txt"] + ["ImageSets/480p/val.txt"] * (year == "2016")
    for name in filter(files.has, lists):
        lines = [line.split()[0] for line in files.read_lines(name) if line.strip()]
        if not lines:
            raise UserError(f"{files.path(name)} lists no sequences: {_DAVIS_HELP}")
        # 2016's own list has every frame: /JPEGImages/480p/SEQUENCE/00000.jpg
        return list(dict.fromkeys(PurePosixPath(x).parent.name or x for x in lines))
    return files.children("JPEGImages/480p")


def _davis_video(files: Files, name: str, single: bool) -> Video:
    frames = [each for each in files.children(f"JPEGImages/480p/{name}") if each.endswith(".jpg")]
    stems = tuple(frame.removesuffix(".jpg") for frame in frames)
    masks = f"Annotations/480p/{name}"
    masked = frozenset(each.removesuffix(".png") for each in files.children(masks))
    if not stems:
        raise Missing(files.path(f"JPEGImages/480p/{name}/00000.jpg"))
    first = files.path(f"{masks}/{stems[0]}.png")
    if stems[0] not in masked:
        raise Missing(first)
    video = DavisVideo(files, name, stems, masked, single)
    if not video.objects():
        raise UserError(
            f"{first} has no object to track; binary masks of 0 and 255 are read by davis16:PATH"
        )
    return video


def split_spec(spec: str, kinds: Iterable[str]) -> tuple[str, str]:
    """KIND and PATH of KIND:PATH; only "scenes" needs no path."""
    kind, _, path = spec.partition(":")
    if kind not in kinds:
        known = ", ".join(each if each == "scenes" else f"{each}:PATH" for each in kinds)
        raise UserError(f"no data set is called {spec}: pass one of {known}")
    if not path and kind != "scenes":
        raise UserError(f"{kind} needs a path: {kind}:PATH")
    return kind, path


def scene_count(text: str, default: int) -> int:
    """The COUNT of "scenes:COUNT"."""
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"scenes:{text} is not a number of scenes: pass scenes or scenes:64")
    return int(text)
