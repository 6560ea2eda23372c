"""The parts of a data set that a protocol reads; with a hold-out, parts of its training part.

A hold-out is for choices, so that the part that is scored in the end is touched once. Which images
are held out follows from their names alone: neither the files' order, the machine nor a seed
changes it, and what a smaller share holds out, a larger one does too.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from croc.errors import UserError
from croc.eval.datasets import Labelled, SegmentationData, open_segmentation
from croc.eval.metrics import IGNORED
from croc.eval.videos import open_videos

SALT = "croc hold-out"
ALONE = "train alone"
"""The training part, opened without a look at the other."""


@dataclass(frozen=True)
class Subset:
    """Some of a data set's images, in its order."""

    data: SegmentationData
    numbers: tuple[int, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.data.classes

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, index: int) -> str:
        return self.data.name(self.numbers[index])

    def read(self, index: int) -> Labelled:
        return self.data.read(self.numbers[index])


def open_part(data: str, part: str) -> Any:
    if part == ALONE:
        return open_segmentation(data, "train", alone=True)
    return open_videos(data) if part == "videos" else open_segmentation(data, part)


def open_parts(
    protocol: str,
    data: str,
    opener: Callable[[str, str], Any] = open_part,
    hold_out: float = 0.0,
) -> dict[str, Any]:
    """What a protocol trains on ("train") and scores ("val", or "videos")."""
    unsupervised = {"kmeans": ("val",), "within": ("val",), "video": ("videos",)}
    parts = unsupervised.get(protocol, ("train", "val"))
    if not hold_out:
        return {part: opener(data, part) for part in parts}
    whole = opener(data, ALONE)
    try:
        found = split_training(whole, hold_out)
        for part in parts:
            _check_labels(found[part], part, hold_out)
    except UserError as error:  # which of several data sets it is
        raise UserError(f"{data}: {error}") from None
    return {part: found[part] for part in parts}


def split_training(data: SegmentationData, share: float) -> dict[str, Subset]:
    """The share whose names hash lowest is scored ("val"), the rest trains ("train")."""
    names = [data.name(number) for number in range(len(data))]
    ranked = sorted(set(names), key=_hash)  # images of one name stay together
    count = round(share * len(ranked))
    if not 0 < count < len(ranked):
        left = "to train on" if count else "to score"
        raise UserError(f"--hold-out {share:g} of {len(ranked)} training images leaves none {left}")
    held = set(ranked[:count])
    numbers: dict[str, list[int]] = {"train": [], "val": []}
    for number, name in enumerate(names):
        numbers["val" if name in held else "train"].append(number)
    return {part: Subset(data, tuple(chosen)) for part, chosen in numbers.items()}


def count_parts(parts: dict[str, Any], hold_out: float) -> dict[str, int]:
    """By the names that a result has for them: what is held out is no validation part."""
    names = {"val": "held out"} if hold_out else {}
    return {names.get(part, part): len(data) for part, data in parts.items()}


def _check_labels(part: Subset, which: str, share: float) -> None:
    """Reads until the first labelled pixel, which is most often in the first image."""
    if any((part.read(index).labels != IGNORED).any() for index in range(len(part))):
        return
    does = {"train": "trains", "val": "is scored"}[which]
    raise UserError(f"--hold-out {share:g}: no pixel of the part that {does} is labelled")


def _hash(name: str) -> tuple[bytes, str]:
    text = f"{SALT}\0{name}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).digest(), name
