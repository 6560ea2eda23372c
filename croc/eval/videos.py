"""Videos with object masks for the evaluations: `open_videos("davis17:~/data/DAVIS")`."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from croc.data.scenes import Scene, make_video
from croc.errors import UserError
from croc.eval.files import Files, Missing, decode_indices, decode_rgb, open_files, same_size
from croc.eval.pairs import read_lines

SCENE_PX = 96
SCENE_VIDEOS = 8
SCENE_FRAMES = 12
_SCENE_SEED = 2**32 + 2  # the labelled scenes have the two before

_DAVIS_HELP = "get the trainval archive at 480p from the DAVIS site (davischallenge.org)"


@runtime_checkable
class FrameReader(Protocol):
    """The frames of one video and their masks."""

    def __len__(self) -> int: ...

    def has_mask(self, t: int) -> bool: ...

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]: ...

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]: ...


@dataclass(frozen=True)
class Video:
    """Frames and, for the first one at least, the number of the object at each pixel."""

    name: str
    frames: FrameReader

    def __len__(self) -> int:
        return len(self.frames)

    def has_mask(self, t: int) -> bool:
        return self.frames.has_mask(t)

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]:
        return self.frames.read_frame(t)

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        """Objects count from 1, the background is 0."""
        return self.frames.read_mask(t)

    def objects(self) -> tuple[int, ...]:
        """The numbers to follow: those in the first frame, whether or not they stay."""
        return tuple(number for number in np.unique(self.read_mask(0)).tolist() if number)


@runtime_checkable
class VideoData(Protocol):
    """Videos by number; can be pickled. A tuple of them will do."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Video: ...


@dataclass(frozen=True)
class DavisFrames:
    """A sequence of DAVIS; `single` merges all objects, as the 2016 task does."""

    files: Files
    sequence: str
    stems: tuple[str, ...]
    masked: frozenset[str]
    single: bool

    def __len__(self) -> int:
        return len(self.stems)

    def has_mask(self, t: int) -> bool:
        return self.stems[t] in self.masked

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]:
        return decode_rgb(self.files, self._frame(t))

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        name = f"Annotations/480p/{self.sequence}/{self.stems[t]}.png"
        mask = self._objects(name)
        frame = self._frame(t)
        same_size(_size_of(self.files, frame), mask, self.files.path(frame), self.files.path(name))
        return mask

    def _frame(self, t: int) -> str:
        return f"JPEGImages/480p/{self.sequence}/{self.stems[t]}.jpg"

    def _objects(self, name: str) -> UInt8[np.ndarray, "h w"]:
        if self.single:  # some copies store the binary masks with three channels
            red, green, blue = np.moveaxis(decode_rgb(self.files, name), -1, 0)
            return (red | green | blue != 0).astype(np.uint8)
        numbers = decode_indices(self.files, name)
        numbers[numbers == 255] = 0
        return numbers


def _size_of(files: Files, name: str) -> UInt8[np.ndarray, "h w 0"]:
    """A picture's shape without its pixels, from the header: decoding takes 50 times as long."""
    data = files.read(name)
    try:
        width, height = Image.open(io.BytesIO(data)).size
    except Exception as error:  # on broken files Pillow raises nearly every type there is
        raise UserError(f"{files.path(name)} cannot be decoded: get it again ({error})") from error
    return np.empty((height, width, 0), np.uint8)


@dataclass(frozen=True)
class SceneFrames:
    """A synthetic video; every frame has its mask."""

    index: int

    def __len__(self) -> int:
        return SCENE_FRAMES

    def has_mask(self, t: int) -> bool:
        return 0 <= t < SCENE_FRAMES

    def read_frame(self, t: int) -> UInt8[np.ndarray, "h w 3"]:
        return _scene_video(self.index)[t].image

    def read_mask(self, t: int) -> UInt8[np.ndarray, "h w"]:
        return _scene_video(self.index)[t].instances


@lru_cache(maxsize=4)
def _scene_video(index: int) -> list[Scene]:
    return make_video(_SCENE_SEED, index, SCENE_FRAMES, SCENE_PX)


def open_videos(spec: str) -> VideoData:
    """The videos of "davis17:PATH", "davis16:PATH" (a folder or a .tar), "scenes[:COUNT]"."""
    kind, path = split_spec(spec, ("davis17", "davis16", "scenes"))
    if kind == "scenes":
        count = scene_count(path, SCENE_VIDEOS)
        return tuple(Video(f"scene {index}", SceneFrames(index)) for index in range(count))
    try:
        files = open_files(path, ("DAVIS",), "JPEGImages")
        names = _davis_sequences(files, "20" + kind[-2:])
        return tuple(_davis_video(files, name, single=kind == "davis16") for name in names)
    except Missing as error:
        raise Missing(error.path, _DAVIS_HELP) from None


def _davis_sequences(files: Files, year: str) -> list[str]:
    """Those of the year's val.txt, else all there are."""
    lists = [f"ImageSets/{year}/val.txt"] + ["ImageSets/480p/val.txt"] * (year == "2016")
    for name in filter(files.has, lists):
        lines = [line.split()[0] for line in read_lines(files, name) if line.strip()]
        if not lines:
            raise UserError(f"{files.path(name)} names no sequence: {_DAVIS_HELP}")
        # 2016's own list names every frame: /JPEGImages/480p/SEQUENCE/00000.jpg
        return list(dict.fromkeys(PurePosixPath(x).parent.name or x for x in lines))
    return files.children("JPEGImages/480p")


def _davis_video(files: Files, name: str, single: bool) -> Video:
    frames = [each for each in files.children(f"JPEGImages/480p/{name}") if each.endswith(".jpg")]
    stems = tuple(frame.removesuffix(".jpg") for frame in frames)
    masks = f"Annotations/480p/{name}"
    masked = {each.removesuffix(".png") for each in files.children(masks)}
    if not stems:
        raise Missing(files.path(f"JPEGImages/480p/{name}/00000.jpg"))
    if stems[0] not in masked:
        raise Missing(files.path(f"{masks}/{stems[0]}.png"))
    video = Video(name, DavisFrames(files, name, stems, frozenset(masked), single))
    if not video.objects():
        raise UserError(
            f"{files.path(f'{masks}/{stems[0]}.png')} shows no object to follow; binary masks of 0 "
            "and 255 are those of davis16:PATH"
        )
    return video


def split_spec(spec: str, kinds: Iterable[str]) -> tuple[str, str]:
    """KIND:PATH in its two parts; only "scenes" needs no path."""
    kind, _, path = spec.partition(":")
    if kind not in kinds:
        known = ", ".join(each if each == "scenes" else f"{each}:PATH" for each in kinds)
        raise UserError(f"no data set is called {spec}: pass one of {known}")
    if not path and kind != "scenes":
        raise UserError(f"say where {kind} lies: {kind}:PATH")
    return kind, path


def scene_count(text: str, default: int) -> int:
    """The COUNT of "scenes:COUNT"."""
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"scenes:{text} is no number of scenes: pass scenes or scenes:64")
    return int(text)
