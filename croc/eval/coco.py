"""COCO's labels, merged into supercategories: 12 of things, 15 of stuff."""

from operator import itemgetter
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

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
"""The 15 supercategories, sorted; "other" (id 183: any thing) is left out."""


def stuff_classes() -> dict[int, int]:
    """From a value of stuffthingmaps (the id minus one) to a class; things are ignored.

    COCO-Stuff numbers its 91 kinds of stuff alphabetically, from id 92 (banner) to 182 (wood).
    """
    by_name = {
        name: number for number, names in enumerate(_STUFF_NAMES.values()) for name in names.split()
    }
    ignored = dict.fromkeys((*range(91), 182), IGNORED)
    return ignored | {91 + place: by_name[name] for place, name in enumerate(sorted(by_name))}


Segments = tuple[Int64[np.ndarray, "n"], UInt8[np.ndarray, "n"]]
"""Sorted ids and classes of an image's segments."""


def panoptic_segments(classes: tuple[str, ...], content: dict[str, Any]) -> dict[str, Segments]:
    """The segments of each image in COCO's panoptic JSON, by the image's name.

    Instances of a class are merged; crowds and segments of other categories are left out.
    """
    index_of = {
        category["id"]: classes.index(category["supercategory"])
        for category in content["categories"]
        if bool(category["isthing"]) == (classes == THINGS)
    }
    segments = {}
    for annotation in sorted(content["annotations"], key=itemgetter("file_name")):
        pairs = sorted(
            (info["id"], index_of[info["category_id"]])
            for info in annotation["segments_info"]
            if info["category_id"] in index_of and not info.get("iscrowd", 0)
        )
        ids, labels = np.array(pairs, np.int64).reshape(-1, 2).T
        segments[annotation["file_name"].rsplit(".", 1)[0]] = ids, labels.astype(np.uint8)
    return segments


def merge_segments(
    segments: Segments, colors: UInt8[np.ndarray, "h w 3"]
) -> UInt8[np.ndarray, "h w"]:
    """The class of each pixel; a segment's id is its color, R + 256 G + 256² B."""
    ids, classes = segments
    pixels = colors.astype(np.int64) @ np.array([1, 256, 256**2])
    if not len(ids):
        return np.full(pixels.shape, IGNORED, np.uint8)
    places = np.searchsorted(ids, pixels).clip(max=len(ids) - 1)
    return np.where(ids[places] == pixels, classes[places], IGNORED).astype(np.uint8)
