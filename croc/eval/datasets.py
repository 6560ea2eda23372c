"""Labelled photographs for the evaluations: `open_segmentation("voc12:~/data", "val")`.

A data set is named KIND:PATH. Opening one lists its files and finds what is missing; pictures
are decoded when they are read (but a `folder` without a classes.txt has its label maps read at
once, to count the classes). Labels are class indices, 255 is ignored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.data.scenes import CLASSES, make_scene
from croc.errors import UserError
from croc.eval import coco
from croc.eval.coco import PanopticLabels
from croc.eval.files import (
    Files,
    Missing,
    decode_indices,
    decode_rgb,
    open_files,
    same_size,
)
from croc.eval.metrics import IGNORED
from croc.eval.pairs import class_names, pair_listed, pair_named, read_lines
from croc.eval.protocols import ADDED
from croc.eval.videos import SCENE_PX, scene_count, split_spec

Parsed = TypeVar("Parsed")

SPLITS = ("train", "val")
SCENE_COUNTS = {"train": 256, "val": 64}

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "dining table", "dog", "horse", "motorbike", "person", "potted plant"),
    *("sheep", "sofa", "train", "tv/monitor"),
)
IDD_CLASSES = (
    *("drivable", "non-drivable", "living things", "vehicles", "roadside objects"),
    *("far objects", "sky"),
)
_ADE_NAMES = (
    "wall,building,sky,floor,tree,ceiling,road,bed,windowpane,grass,cabinet,sidewalk,person,earth,"
    "door,table,mountain,plant,curtain,chair,car,water,painting,sofa,shelf,house,sea,mirror,rug,"
    "field,armchair,seat,fence,desk,rock,wardrobe,lamp,bathtub,railing,cushion,base,box,column,"
    "signboard,chest of drawers,counter,sand,sink,skyscraper,fireplace,refrigerator,grandstand,"
    "path,stairs,runway,case,pool table,pillow,screen door,stairway,river,bridge,bookcase,blind,"
    "coffee table,toilet,flower,book,hill,bench,countertop,stove,palm,kitchen island,computer,"
    "swivel chair,boat,bar,arcade machine,hovel,bus,towel,light,truck,tower,chandelier,awning,"
    "streetlight,booth,television,airplane,dirt track,apparel,pole,land,bannister,escalator,"
    "ottoman,bottle,buffet,poster,stage,van,ship,fountain,conveyer belt,canopy,washer,plaything,"
    "swimming pool,stool,barrel,basket,waterfall,tent,bag,minibike,cradle,oven,ball,food,step,"
    "tank,trade name,microwave,pot,animal,bicycle,lake,dishwasher,screen,blanket,sculpture,hood,"
    "sconce,vase,traffic light,tray,ashcan,fan,pier,crt screen,plate,monitor,bulletin board,"
    "shower,radiator,glass,clock,flag"
)
ADE_CLASSES = tuple(_ADE_NAMES.split(","))

_VOC_HELP = (
    "get VOC2012 from the PASCAL VOC site (host.robots.ox.ac.uk/pascal/VOC), and for training "
    "SegmentationClassAug and trainaug.txt, made from SBD (Hariharan et al., Berkeley)"
)
_COCO_HELP = "get the 2017 images and the panoptic annotations from cocodataset.org"
_STUFF_HELP = "get images from cocodataset.org, stuffthingmaps from github.com/nightrome/cocostuff"
_ADE_HELP = "get ADEChallengeData2016 from MIT's scene parsing site (sceneparsing.csail.mit.edu)"
_FOLDER_HELP = (
    "put pictures NAME.jpg (.jpeg and .png are read too) into images/train and images/val, and "
    "label maps NAME.png into labels/train and labels/val"
)
_MINI_HELP = "get COCO from cocodataset.org and pack images/, labels/ and categories.json"
_IDD_HELP = "get IDD-Lite from idd.insaan.iiit.ac.in and pack images/ and labels/"


@dataclass(frozen=True)
class Labelled:
    """A photograph and the class of each of its pixels."""

    image: UInt8[np.ndarray, "h w 3"]
    """Red, green, blue."""
    labels: UInt8[np.ndarray, "h w"]
    """Number of the class; 255 counts for nothing, neither in training nor in scores."""
    name: str
    """What messages and hold-outs call it."""


@runtime_checkable
class SegmentationData(Protocol):
    """Labelled images by number; can be pickled, so that it reaches a loader's workers."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def read(self, index: int) -> Labelled: ...


class PairedData:
    """Pictures and label maps in files of their own; `table` leads from a value to a class."""

    def __init__(
        self,
        files: Files,
        pairs: list[tuple[str, str]],
        classes: tuple[str, ...],
        table: Mapping[int, int],
    ) -> None:
        self.classes = classes
        self._files, self._pairs = files, tuple(pairs)
        self._table = np.full(256, -1, np.int16)
        self._table[IGNORED] = IGNORED
        self._table[list(table)] = list(table.values())

    def __len__(self) -> int:
        return len(self._pairs)

    def name(self, index: int) -> str:
        return PurePosixPath(self._pairs[index][0]).stem

    def read(self, index: int) -> Labelled:
        image_name, label_name = self._pairs[index]
        image = decode_rgb(self._files, image_name)
        labels = self._read_labels(index)
        same_size(image, labels, self._files.path(image_name), self._files.path(label_name))
        return Labelled(image, labels, self.name(index))

    def _read_labels(self, index: int) -> UInt8[np.ndarray, "h w"]:
        name = self._pairs[index][1]
        values = decode_indices(self._files, name)
        labels = self._table[values]
        if labels.min() < 0:
            raise UserError(
                f"{self._files.path(name)} holds the label {values[labels < 0][0]}, which is none "
                f"of this data set's: check the data set's kind and the file"
            )
        return labels.astype(np.uint8)


class PanopticData(PairedData):
    """COCO's panoptic PNGs, in which a colour is a segment's number."""

    def __init__(self, files: Files, images: str, labels: str, segments: PanopticLabels) -> None:
        pairs = pair_named(files, segments.names, images, labels)
        super().__init__(files, pairs, segments.classes, {})
        self._segments = segments

    def _read_labels(self, index: int) -> UInt8[np.ndarray, "h w"]:
        return self._segments.merge(index, decode_rgb(self._files, self._pairs[index][1]))


class ScenesData:
    """Synthetic scenes; the splits have seeds of their own, which no training run would use."""

    classes = CLASSES

    def __init__(self, count: int, split: str) -> None:
        self._count = count
        self._seed = 2**32 + SPLITS.index(split)

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"scene {index}"

    def read(self, index: int) -> Labelled:
        if not 0 <= index < self._count:
            raise IndexError(index)
        scene = make_scene(self._seed, index, SCENE_PX)
        return Labelled(scene.image, scene.labels, self.name(index))


def open_segmentation(spec: str, split: str, alone: bool = False) -> SegmentationData:
    """The "train" or "val" split of KIND:PATH; PATH is a folder or a .tar.

    `alone` reads nothing of the other split, not even to count the classes of a `folder`.
    """
    kind, path = split_spec(spec, (*_KINDS, *ADDED, "scenes"))
    if split not in SPLITS:
        raise UserError(f"no split is called {split}: pass train or val")
    if kind == "scenes":
        return ScenesData(scene_count(path, SCENE_COUNTS[split]), split)
    if kind in ADDED:
        return ADDED[kind](path, split)
    opener, within, probe, advice = _KINDS[kind]
    if alone and kind == "folder":
        opener = partial(_open_folder, (), counted=(split,))
    try:
        return opener(open_files(path, within, probe), split)
    except Missing as error:
        raise Missing(error.path, advice) from None


def _open_voc(files: Files, split: str) -> SegmentationData:
    suffix = {"train": "Aug", "val": ""}[split]
    list_path = f"ImageSets/Segmentation/{split}{suffix.lower()}.txt"
    lines = [line.split() for line in read_lines(files, list_path)]
    # Some copies of trainaug.txt name two files a line, others the photograph's number.
    names = [PurePosixPath(words[0]).stem for words in lines if words]
    if not names:
        raise UserError(f"{files.path(list_path)} names no image: {_VOC_HELP}")
    pairs = pair_named(files, names, "JPEGImages", f"SegmentationClass{suffix}")
    return PairedData(files, pairs, VOC_CLASSES, dict(enumerate(range(21))))


def _open_ade(files: Files, split: str) -> SegmentationData:
    folder = {"train": "training", "val": "validation"}[split]
    pairs = pair_listed(files, f"images/{folder}", f"annotations/{folder}")
    table = {0: IGNORED} | {index + 1: index for index in range(len(ADE_CLASSES))}
    return PairedData(files, pairs, ADE_CLASSES, table)


def _open_panoptic(classes: tuple[str, ...], files: Files, split: str) -> SegmentationData:
    labels = f"annotations/panoptic_{split}2017"
    name = f"{labels}.json"
    segments = _parse(files, name, partial(PanopticLabels, classes))
    if not segments.names:
        raise UserError(f"{files.path(name)} names no image: {_COCO_HELP}")
    return PanopticData(files, _coco_images(files, split), labels, segments)


def _open_stuff(files: Files, split: str) -> SegmentationData:
    images = _coco_images(files, split)
    roots = ("stuffthingmaps", "stuffthingmaps_trainval2017", "annotations")
    folders = [f"{root}/{split}2017" for root in roots]
    beside = any(name.endswith(".png") for name in files.children(images))
    labels = next(filter(files.has, folders), images if beside else folders[0])
    pairs = pair_listed(files, images, labels, (".jpg",))
    return PairedData(files, pairs, coco.STUFF, coco.stuffthing_classes())


def _coco_images(files: Files, split: str) -> str:
    unpacked, tidy = f"{split}2017", f"images/{split}2017"
    return tidy if files.has(tidy) and not files.has(unpacked) else unpacked


def _open_folder(
    classes: tuple[str, ...], files: Files, split: str, counted: tuple[str, ...] = SPLITS
) -> SegmentationData:
    pairs = pair_listed(files, f"images/{split}", f"labels/{split}")
    if not classes and files.has("classes.txt"):
        classes = class_names(files, "classes.txt")
    if not classes:
        classes = tuple(str(value) for value in range(_largest_label(files, counted) + 1))
    table = dict(enumerate(range(len(classes))))
    return PairedData(files, pairs, classes, table)


def _largest_label(files: Files, counted: tuple[str, ...]) -> int:
    """Over both splits, so that these have the same classes."""
    folders = filter(files.has, (f"labels/{split}" for split in counted))
    names = [f"{folder}/{name}" for folder in folders for name in files.children(folder)]
    maps = (decode_indices(files, name) for name in names if name.endswith(".png"))
    return max(int(values[values != IGNORED].max(initial=0)) for values in maps)


def _open_mini(files: Files, split: str) -> SegmentationData:
    table = _parse(files, "categories.json", coco.thing_classes)
    pairs = pair_listed(files, f"images/{split}", f"labels/{split}")
    return PairedData(files, pairs, coco.THINGS, table)


_Kind = tuple[Callable[[Files, str], SegmentationData], tuple[str, ...], str, str]
_KINDS: dict[str, _Kind] = {
    "voc12": (_open_voc, ("VOC2012", "VOCdevkit/VOC2012"), "ImageSets", _VOC_HELP),
    "coco-things": (partial(_open_panoptic, coco.THINGS), (), "", _COCO_HELP),
    "coco-stuff": (_open_stuff, (), "", _STUFF_HELP),
    "coco-stuff-panoptic": (partial(_open_panoptic, coco.STUFF), (), "", _COCO_HELP),
    "ade20k": (_open_ade, ("ADEChallengeData2016",), "images", _ADE_HELP),
    "folder": (partial(_open_folder, ()), (), "", _FOLDER_HELP),
    "coco-things-mini": (_open_mini, (), "", _MINI_HELP),
    "idd-lite": (partial(_open_folder, IDD_CLASSES), (), "", _IDD_HELP),
}


def _parse(files: Files, name: str, parse: Callable[[Any, str], Parsed]) -> Parsed:
    try:
        return parse(json.loads(files.read(name)), files.path(name))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{files.path(name)} is not as it should be ({error!r}): get it again"
        ) from error
