"""Labelled images for the evaluations: `open_segmentation("voc12:~/data", "val")`.

A data set is named KIND:PATH. Opening one lists its files and reports what is missing; images are
decoded when they are read (but a `folder` without a classes.txt has its label maps read at once,
to count the classes). Labels are class indices, 255 is ignored.

`add_data` adds a layout of your own.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.data.scenes import CLASSES, make_scene
from croc.errors import UserError
from croc.eval import coco
from croc.eval.files import Files, Missing, pair_listed, pair_named
from croc.eval.metrics import IGNORED
from croc.eval.protocols import ADDED, IMAGES, VIDEOS
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


@dataclass(frozen=True)
class Labelled:
    """A photograph and the class of each of its pixels."""

    image: UInt8[np.ndarray, "h w 3"]
    """RGB."""
    labels: UInt8[np.ndarray, "h w"]
    """Index of the class; 255 is ignored in training and in scores."""
    name: str
    """Used in messages, and to choose hold-outs."""


@runtime_checkable
class SegmentationData(Protocol):
    """Labelled images by index; can be pickled, so that worker processes can read it."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def read(self, index: int) -> Labelled: ...


class PairedData:
    """Images and label maps in separate files; `table` maps a label map's value to a class.

    With `segments`, label maps are COCO's panoptic PNGs instead.
    """

    def __init__(
        self,
        files: Files,
        pairs: list[tuple[str, str]],
        classes: tuple[str, ...],
        table: Mapping[int, int] | None = None,
        segments: dict[str, coco.Segments] | None = None,
    ) -> None:
        self.classes = classes
        self._files, self._pairs, self._segments = files, tuple(pairs), segments
        self._table = np.full(256, -1, np.int16)
        self._table[IGNORED] = IGNORED
        table = dict(enumerate(range(len(classes)))) if table is None else table
        self._table[list(table)] = list(table.values())

    def __len__(self) -> int:
        return len(self._pairs)

    def name(self, index: int) -> str:
        return PurePosixPath(self._pairs[index][0]).stem

    def read(self, index: int) -> Labelled:
        image_name, label_name = self._pairs[index]
        image = self._files.read_rgb(image_name)
        if self._segments:
            colours = self._files.read_rgb(label_name)
            labels = coco.merge_segments(self._segments[self.name(index)], colours)
        else:
            values = self._files.read_indices(label_name)
            labels = self._table[values]
            if labels.min() < 0:
                raise UserError(
                    f"{self._files.path(label_name)} has the label {values[labels < 0][0]}, which "
                    "this data set does not define: check the data set's kind and the file"
                )
        self._files.check_same_size(image_name, image.shape[:2], label_name, labels.shape)
        return Labelled(image, labels.astype(np.uint8), self.name(index))


class ScenesData:
    """Synthetic scenes; each split has its own seed, which no training run would use."""

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


@dataclass(frozen=True)
class Subset:
    """Some images of a data set, in its order."""

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
        return opener(Files(path, within, probe), split)
    except Missing as error:
        raise Missing(error.path, advice) from None


def _open_voc(files: Files, split: str) -> SegmentationData:
    suffix = {"train": "Aug", "val": ""}[split]
    list_path = f"ImageSets/Segmentation/{split}{suffix.lower()}.txt"
    # Some copies of trainaug.txt have two paths per line, others the image's name.
    lines = [line.split() for line in files.read_lines(list_path)]
    names = [PurePosixPath(words[0]).stem for words in lines if words]
    if not names:
        raise UserError(f"{files.path(list_path)} lists no images: {_VOC_HELP}")
    pairs = pair_named(files, names, "JPEGImages", f"SegmentationClass{suffix}")
    return PairedData(files, pairs, VOC_CLASSES)


def _open_ade(files: Files, split: str) -> SegmentationData:
    folder = {"train": "training", "val": "validation"}[split]
    pairs = pair_listed(files, f"images/{folder}", f"annotations/{folder}")
    table = {0: IGNORED} | {index + 1: index for index in range(len(ADE_CLASSES))}
    return PairedData(files, pairs, ADE_CLASSES, table)


def _open_panoptic(classes: tuple[str, ...], files: Files, split: str) -> SegmentationData:
    labels = f"annotations/panoptic_{split}2017"
    segments = _parse_json(files, f"{labels}.json", partial(coco.panoptic_segments, classes))
    if not segments:
        raise UserError(f"{files.path(f'{labels}.json')} lists no images: {_COCO_HELP}")
    pairs = pair_named(files, list(segments), _coco_images(files, split), labels)
    return PairedData(files, pairs, classes, segments=segments)


def _open_stuff(files: Files, split: str) -> SegmentationData:
    images = _coco_images(files, split)
    roots = ("stuffthingmaps", "stuffthingmaps_trainval2017", "annotations")
    folders = [f"{root}/{split}2017" for root in roots]
    beside = any(name.endswith(".png") for name in files.children(images))
    labels = next(filter(files.has, folders), images if beside else folders[0])
    pairs = pair_listed(files, images, labels, (".jpg",))
    return PairedData(files, pairs, coco.STUFF, coco.stuff_classes())


def _coco_images(files: Files, split: str) -> str:
    unpacked, tidy = f"{split}2017", f"images/{split}2017"
    return tidy if files.has(tidy) and not files.has(unpacked) else unpacked


def _open_folder(
    classes: tuple[str, ...], files: Files, split: str, counted: tuple[str, ...] = SPLITS
) -> SegmentationData:
    """Without names, classes are counted over both splits, so that these have the same."""
    pairs = pair_listed(files, f"images/{split}", f"labels/{split}")
    if not classes and files.has("classes.txt"):
        classes = tuple(filter(None, map(str.strip, files.read_lines("classes.txt"))))
        if len(classes) > IGNORED:
            path = files.path("classes.txt")
            raise UserError(f"{path} has {len(classes)} classes, the maximum is {IGNORED}")
        repeated = [name for name in classes if classes.count(name) > 1]
        if repeated:
            raise UserError(f"{files.path('classes.txt')} has the class {repeated[0]!r} twice")
    if not classes:
        folders = filter(files.has, (f"labels/{each}" for each in counted))
        names = [f"{folder}/{name}" for folder in folders for name in files.children(folder)]
        maps = (files.read_indices(name) for name in names if name.endswith(".png"))
        largest = max(int(values[values != IGNORED].max(initial=0)) for values in maps)
        classes = tuple(map(str, range(largest + 1)))
    return PairedData(files, pairs, classes)


def _open_mini(files: Files, split: str) -> SegmentationData:
    table = _parse_json(files, "categories.json", coco.thing_classes)
    pairs = pair_listed(files, f"images/{split}", f"labels/{split}")
    return PairedData(files, pairs, coco.THINGS, table)


def _parse_json(files: Files, name: str, parse: Callable[[Any, str], Parsed]) -> Parsed:
    try:
        return parse(json.loads(files.read(name)), files.path(name))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{files.path(name)} has an unexpected format ({error!r}): download it again"
        ) from error


_VOC_HELP = (
    "get VOC2012 from the PASCAL VOC site (host.robots.ox.ac.uk/pascal/VOC), and for training "
    "SegmentationClassAug and trainaug.txt, made from SBD (Hariharan et al., Berkeley)"
)
_COCO_HELP = "get the 2017 images and the panoptic annotations from cocodataset.org"
_STUFF_HELP = "get images from cocodataset.org, stuffthingmaps from github.com/nightrome/cocostuff"
_ADE_HELP = "get ADEChallengeData2016 from MIT's scene parsing site (sceneparsing.csail.mit.edu)"
_FOLDER_HELP = (
    "put images NAME.jpg (.jpeg and .png work too) into images/train and images/val, and label "
    "maps NAME.png into labels/train and labels/val"
)
_MINI_HELP = "get COCO from cocodataset.org and pack images/, labels/ and categories.json"
_IDD_HELP = "get IDD-Lite from idd.insaan.iiit.ac.in and pack images/ and labels/"
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


def add_data(kind: str, opener: Callable[[str, str], SegmentationData]) -> None:
    """Let `croc.evaluate` read KIND:PATH; a kind that was added before is replaced.

    A folder of `images/` and `labels/` does not need this: that is `folder:PATH`.

    Args:
        kind: The name before the colon; PATH is an existing folder or file.
        opener: Called with PATH and "train" or "val"; returns an object with `classes` (a tuple
            of names), `len()`, `name(index)` and `read(index)`, which returns `croc.Labelled`: an
            image as uint8 "h w 3" and the class of each pixel as uint8 "h w", counted from 0,
            255 where it is unknown. Worker processes get copies, so it must be picklable.

    Raises:
        UserError: For a name that is taken; and later, when the data are read, for anything but
            `Labelled`, or labels that do not fit the image or the classes.
    """
    taken = (*IMAGES, *VIDEOS, "scenes")
    if kind in taken or not kind or ":" in kind:
        raise UserError(f"{kind!r} cannot be the name of your data: {', '.join(taken)} are taken")

    def open_added(path: str, split: str) -> SegmentationData:
        if not Path(path).expanduser().exists():
            raise UserError(f"{kind}:{path}: no such folder or file")
        data = opener(path, split)
        if not isinstance(data, SegmentationData):
            names = ("classes", "__len__", "name", "read")
            lacks = ", ".join(name for name in names if not hasattr(data, name))
            raise UserError(f"{kind}: the opened data has no {lacks}")
        if not len(data):
            raise UserError(f"{kind}:{path}: the part {split} has no images")
        if not 0 < len(data.classes) <= IGNORED:
            raise UserError(f"{kind}: 1 to {IGNORED} classes are possible, not {len(data.classes)}")
        return CheckedData(data, tuple(range(len(data))), kind)

    ADDED[kind] = open_added


@dataclass(frozen=True)
class CheckedData(Subset):
    """Data of a user's own reader: images are checked when they are read."""

    kind: str

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.data.classes)

    def read(self, index: int) -> Labelled:
        read: Any = self.data.read(index)
        where, classes = f"{self.kind}, {self.name(index)}", len(self.classes)
        if not isinstance(read, Labelled):
            kind = type(read).__name__
            raise UserError(
                f"{where}: read must give croc.Labelled(image, labels, name), not {kind}"
            )
        for what, array, axes in (("image", read.image, 3), ("labels", read.labels, 2)):
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise UserError(f"{where}: {what} must be a NumPy array, not {kind}")
            if array.dtype != np.uint8 or array.ndim != axes:
                kind = f"{array.dtype} of {array.ndim}"
                raise UserError(f"{where}: {what} must be bytes of {axes} axes, not {kind}")
        if read.image.shape != (*read.labels.shape, 3):
            shapes = f"the image is {read.image.shape}, its labels {read.labels.shape}"
            raise UserError(f"{where}: {shapes}")
        bad = read.labels[(read.labels >= classes) & (read.labels != IGNORED)]
        if bad.size:
            raise UserError(
                f"{where}: a label is {bad[0]}, but classes count from 0 to {classes - 1}"
            )
        return read
