"""COCO's label files, merged into supercategories: 12 of things, 15 of stuff."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from croc.errors import UserError
from croc.eval.metrics import IGNORED

THINGS = (
    *("accessory", "animal", "appliance", "electronic", "food", "furniture"),
    *("indoor", "kitchen", "outdoor", "person", "sports", "vehicle"),
)

_STUFF_NAMES = {
    "building": "bridge building-other house roof skyscraper tent",
    "ceiling": "ceiling-other ceiling-tile",
    "floor": "carpet floor-marble floor-other floor-stone floor-tile floor-wood",
    "food-stuff": "food-other fruit salad vegetable",
    "furniture-stuff": "cabinet counter cupboard desk-stuff door-stuff furniture-other light "
    "mirror-stuff shelf stairs table",
    "ground": "dirt gravel ground-other mud pavement platform playingfield railroad road sand snow",
    "plant": "branch bush flower grass leaves moss plant-other straw tree",
    "raw-material": "cardboard metal paper plastic",
    "sky": "clouds sky-other",
    "solid": "hill mountain rock solid-other stone wood",
    "structural": "cage fence net railing structural-other",
    "textile": "banner blanket cloth clothes curtain mat napkin pillow rug textile-other towel",
    "wall": "wall-brick wall-concrete wall-other wall-panel wall-stone wall-tile wall-wood",
    "water": "fog river sea water-other waterdrops",
    "window": "window-blind window-other",
}
STUFF = tuple(_STUFF_NAMES)
"""The 15 supercategories, sorted by name; "other" (id 183: whatever is a thing) is left out."""

STUFF_SUPERCATEGORIES: dict[str, str] = {
    name: supercategory for supercategory, names in _STUFF_NAMES.items() for name in names.split()
}
"""Each of the 91 kinds of stuff and its supercategory."""

FIRST_STUFF_ID = 92
"""COCO-Stuff numbers its stuff alphabetically, 92 (banner) to 182 (wood)."""


def stuff_classes_by_id() -> dict[int, int]:
    """COCO-Stuff's ids 92 to 182, each with the index of its supercategory."""
    names = enumerate(sorted(STUFF_SUPERCATEGORIES), start=FIRST_STUFF_ID)
    return {number: STUFF.index(STUFF_SUPERCATEGORIES[name]) for number, name in names}


def stuffthing_classes() -> dict[int, int]:
    """From a value of stuffthingmaps, which is the id less one, to a class; things are ignored."""
    ignored = dict.fromkeys((*range(FIRST_STUFF_ID - 1), 182), IGNORED)
    return ignored | {number - 1: index for number, index in stuff_classes_by_id().items()}


def thing_classes(categories: Mapping[str, list[str]], path: str) -> dict[int, int]:
    """From a category's id, as in {"1": ["person", "person"]}, to a class; 0 is ignored."""
    classes = {0: IGNORED}
    for number, (_, supercategory) in categories.items():
        classes[int(number)] = _index(THINGS, supercategory, path)
    return classes


class PanopticLabels:
    """What COCO's panoptic JSON says of each image's segments, in three flat arrays.

    A segment's number is its colour, R + 256 G + 256² B. Instances of a class are merged;
    crowds, segments of other categories and colours without a segment are ignored.
    """

    def __init__(self, classes: tuple[str, ...], content: dict[str, Any], path: str) -> None:
        self.classes = classes
        wants_things = classes == THINGS
        index_of = {
            category["id"]: _index(classes, category["supercategory"], path)
            for category in content["categories"]
            if bool(category["isthing"]) == wants_things
        }
        annotations = sorted(content["annotations"], key=lambda each: each["file_name"])
        segments = [_segments(each["segments_info"], index_of) for each in annotations]
        self.names = tuple(each["file_name"].rsplit(".", 1)[0] for each in annotations)
        self._ends = np.cumsum([0, *(len(each) for each in segments)])
        flat = [pair for each in segments for pair in each]
        self._numbers = np.array([number for number, _ in flat], np.int64)
        self._classes = np.array([index for _, index in flat], np.uint8)

    def merge(self, index: int, colours: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w"]:
        """The class of each pixel of the index-th image."""
        mine = slice(self._ends[index], self._ends[index + 1])
        numbers, classes = self._numbers[mine], self._classes[mine]
        pixels = segment_numbers(colours)
        if not len(numbers):
            return np.full(pixels.shape, IGNORED, np.uint8)
        places = np.searchsorted(numbers, pixels).clip(max=len(numbers) - 1)
        return np.where(numbers[places] == pixels, classes[places], IGNORED).astype(np.uint8)


def segment_numbers(colours: UInt8[np.ndarray, "h w 3"]) -> Int64[np.ndarray, "h w"]:
    """A panoptic PNG's colours as the numbers they stand for."""
    return colours.astype(np.int64) @ np.array([1, 256, 256**2])


def _segments(infos: list[dict[str, Any]], index_of: dict[int, int]) -> list[tuple[int, int]]:
    """Number and class of the segments that count, sorted by number."""
    counted = [
        (info["id"], index_of[info["category_id"]])
        for info in infos
        if info["category_id"] in index_of and not info.get("iscrowd", 0)
    ]
    return sorted(counted)


def _index(classes: tuple[str, ...], supercategory: str, path: str) -> int:
    if supercategory not in classes:
        raise UserError(
            f"{path} has the supercategory {supercategory}, not one of {', '.join(classes)}: "
            f"use the file as COCO gives it"
        )
    return classes.index(supercategory)
