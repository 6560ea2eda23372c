"""Labeled images for the evaluations: `open_segmentation("voc12:~/data", "val")`.

A dataset is named KIND:PATH. Opening it lists its files and reports what is missing; images are
decoded when they are read (but a `folder` without a classes.txt has its label maps read at once,
to count the classes). Labels are class indices, 255 is ignored.

`register_dataset` adds a layout of your own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.data.scenes import CLASSES, make_scene
from croc.errors import UserError
from croc.eval import coco
from croc.eval.files import Files, scene_count, split_spec
from croc.eval.metrics import IGNORED
from croc.eval.protocols import IMAGES, REGISTERED, VIDEOS
from croc.eval.videos import SCENE_PX

SPLITS = ("train", "val")
SCENE_COUNTS = {"train": 256, "val": 64}
ROOTS = {
    "voc12": ("VOC2012", "VOCdevkit/VOC2012"),
    "ade20k": ("ADEChallengeData2016",),
}
"""Folders that the official archives unpack to."""

_VOC_NAMES = (
    "background,aeroplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,dining table,dog,horse,"
    "motorbike,person,potted plant,sheep,sofa,train,tv/monitor"
)
_IDD_NAMES = "drivable,non-drivable,living things,vehicles,roadside objects,far objects,sky"
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
VOC_CLASSES, IDD_CLASSES, ADE_CLASSES = (
    tuple(names.split(",")) for names in (_VOC_NAMES, _IDD_NAMES, _ADE_NAMES)
)


@dataclass(frozen=True)
class LabeledImage:
    """An image and its per-pixel class labels."""

    image: UInt8[np.ndarray, "h w 3"]
    """RGB."""
    labels: UInt8[np.ndarray, "h w"]
    """Class index of each pixel; 255 is ignored in training and in scores."""
    name: str
    """Used in messages, and to choose hold-outs."""

    def __post_init__(self) -> None:
        image, labels = np.asarray(self.image), np.asarray(self.labels)
        bytes_only = image.dtype == labels.dtype == np.uint8
        if not bytes_only or labels.ndim != 2 or image.shape != (*labels.shape, 3):
            kinds = " and ".join(f"{array.dtype} {array.shape}" for array in (image, labels))
            raise UserError(
                f"{self.name}: image and labels must be uint8 (h, w, 3) and (h, w), not {kinds}"
            )


@runtime_checkable
class SegmentationData(Protocol):
    """Labeled images by index; can be pickled, so that worker processes can read it."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def read(self, index: int) -> LabeledImage: ...


@dataclass(frozen=True)
class PairedData:
    """Images and label maps in separate files; `table` maps a label map's value to a class.

    With `segments`, label maps are COCO's panoptic PNGs instead.
    """

    files: Files
    pairs: list[tuple[str, str]]
    classes: tuple[str, ...]
    table: dict[int, int]
    segments: dict[str, coco.Segments]

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return PurePosixPath(self.pairs[index][0]).stem

    def read(self, index: int) -> LabeledImage:
        (image_path, label_path), name = self.pairs[index], self.name(index)
        image = self.files.read_rgb(image_path)
        if self.segments:
            labels = coco.merge_segments(self.segments[name], self.files.read_colors(label_path))
        else:
            values, known = self.files.read_indices(label_path), np.full(256, -1, np.int16)
            known[list(self.table)] = list(self.table.values())
            labels = known[values]
            if labels.min() < 0:
                raise UserError(
                    f"{self.files.path(label_path)} has the label {values[labels < 0][0]}, which "
                    f"this dataset does not define (it has {len(self.classes)} classes): check the "
                    "file, the dataset's kind and, if it has one, its classes.txt"
                )
        if image.shape[:2] != labels.shape:
            sizes = [f"{width}×{height}" for height, width in (image.shape[:2], labels.shape)]
            raise UserError(
                f"{self.files.path(image_path)} is {sizes[0]} but {self.files.path(label_path)} is "
                f"{sizes[1]}: they must have the same size"
            )
        return LabeledImage(image, labels.astype(np.uint8), name)


@dataclass(frozen=True)
class ScenesData:
    """Synthetic scenes; each split has its own seed, which no training run would use."""

    count: int
    split: str
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"scene {index}"

    def read(self, index: int) -> LabeledImage:
        scene = make_scene(2**32 + SPLITS.index(self.split), index, SCENE_PX)
        return LabeledImage(scene.image, scene.labels, self.name(index))


@dataclass(frozen=True)
class Subset:
    """Some images of a dataset, in its order."""

    data: SegmentationData
    numbers: tuple[int, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.data.classes)

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, index: int) -> str:
        return self.data.name(self.numbers[index])

    def read(self, index: int) -> LabeledImage:
        return self.data.read(self.numbers[index])


def open_segmentation(spec: str, split: str, alone: bool = False) -> SegmentationData:
    """The "train" or "val" split of KIND:PATH; PATH is a folder or a .tar.

    `alone` reads nothing of the other split, not even to count the classes of a `folder`.
    """
    kind, path = split_spec(spec, (*IMAGES, *REGISTERED, "scenes"))
    if kind == "scenes":
        return ScenesData(scene_count(path, SCENE_COUNTS[split]), split)
    if kind in REGISTERED:
        return REGISTERED[kind](path, split)
    files = Files(path, ROOTS.get(kind, ()))
    images, labels = f"images/{split}", f"labels/{split}"
    names, table, segments = None, None, {}
    if kind.startswith("coco-") and kind != "coco-things-mini":
        unpacked, tidy = f"{split}2017", f"images/{split}2017"
        images = tidy if files.has(tidy) and not files.has(unpacked) else unpacked
    if kind == "voc12":
        augmented = "Aug" if split == "train" else ""
        images, labels, classes = "JPEGImages", f"SegmentationClass{augmented}", VOC_CLASSES
        lines = files.read_lines(f"ImageSets/Segmentation/{split}{augmented.lower()}.txt")
        # Some copies of trainaug.txt have two paths per line, others the image's name.
        names = [PurePosixPath(line.split()[0]).stem for line in lines]
    elif kind == "ade20k":
        part, classes = {"train": "training", "val": "validation"}[split], ADE_CLASSES
        images, labels = f"images/{part}", f"annotations/{part}"
        table = {0: IGNORED} | {index + 1: index for index in range(len(classes))}
    elif kind == "coco-stuff":
        classes, table = coco.STUFF, coco.stuff_classes()
        roots = ("stuffthingmaps", "stuffthingmaps_trainval2017", "annotations")
        folders = [f"{root}/{split}2017" for root in roots]
        beside = any(name.endswith(".png") for name in files.children(images))
        labels = next(filter(files.has, folders), images if beside else folders[0])
    elif kind in ("coco-things", "coco-stuff-panoptic"):
        classes = coco.THINGS if kind == "coco-things" else coco.STUFF
        labels = f"annotations/panoptic_{split}2017"
        segments = coco.panoptic_segments(classes, files.read_json(f"{labels}.json"))
        names = list(segments)
    elif kind == "coco-things-mini":  # {"1": ["person", "person"]}: id, name and supercategory
        classes, categories = coco.THINGS, files.read_json("categories.json")
        table = {int(key): classes.index(parent) for key, (_, parent) in categories.items()}
        table |= {0: IGNORED}
    elif kind == "idd-lite":
        classes = IDD_CLASSES
    elif files.has("classes.txt"):
        lines = files.read_text("classes.txt").rstrip().splitlines()
        classes = tuple(line.strip() or str(number) for number, line in enumerate(lines))
        if len(set(classes)) < len(classes) or len(classes) > IGNORED:
            problem = f"more than {IGNORED} classes" if len(classes) > IGNORED else "a class twice"
            raise UserError(f"{files.path('classes.txt')} has {problem}")
    else:  # counted over both splits, so that these have the same
        folders = [f"labels/{name}" for name in ((split,) if alone else SPLITS)]
        paths = [f"{x}/{name}" for x in filter(files.has, folders) for name in files.children(x)]
        maps = (files.read_indices(path) for path in paths if path.endswith(".png"))
        largest = max((int(x[x != IGNORED].max(initial=0)) for x in maps), default=0)
        classes = tuple(map(str, range(largest + 1)))
    pairs = files.pair(images, labels, names)
    table = dict(enumerate(range(len(classes)))) if table is None else table
    return PairedData(files, pairs, classes, table | {IGNORED: IGNORED}, segments)


def register_dataset(kind: str, opener: Callable[[str, str], SegmentationData]) -> None:
    """Register a dataset, so that `croc.evaluate` can read KIND:PATH; replaces an earlier one.

    A folder of `images/` and `labels/` needs no registration: pass `folder:PATH`.

    Args:
        kind: The name before the colon; PATH is an existing folder or file.
        opener: Called with PATH and "train" or "val"; returns an object with `classes` (a tuple
            of names), `len()`, `name(index)` and `read(index)`, which returns a
            `croc.LabeledImage`: a uint8 image "h w 3" and uint8 class indices "h w", with 255
            for unlabeled pixels. It must be picklable, since worker processes get copies.

    Raises:
        UserError: If the name is taken; and later, when data are read, if `read` does not return
            `LabeledImage`, or if labels do not fit the image or the classes.
    """
    taken = (*IMAGES, *VIDEOS, "scenes")
    if kind in taken or not kind or ":" in kind:
        raise UserError(f"{kind!r} cannot be the name of your data: {', '.join(taken)} are taken")

    def open_registered(path: str, split: str) -> SegmentationData:
        if not Path(path).expanduser().exists():
            raise UserError(f"{kind}:{path}: no such folder or file")
        data = opener(str(Path(path).expanduser()), split)
        if not len(data):
            raise UserError(f"{kind}:{path}: the split {split} has no images")
        return CheckedData(data, tuple(range(len(data))), kind)

    REGISTERED[kind] = open_registered


@dataclass(frozen=True)
class CheckedData(Subset):
    """Data of a user's own reader: labels are checked when they are read."""

    kind: str

    def read(self, index: int) -> LabeledImage:
        labeled, classes = self.data.read(index), len(self.classes)
        if not isinstance(labeled, LabeledImage):
            what = f"read returned a {type(labeled).__name__}, not a croc.LabeledImage"
            raise UserError(f"{self.kind}, {self.name(index)}: {what}")
        bad = labeled.labels[(labeled.labels >= classes) & (labeled.labels != IGNORED)]
        if bad.size:
            raise UserError(
                f"{self.kind}, {self.name(index)}: label {bad[0]} is out of range; class indices "
                f"are 0 to {classes - 1}"
            )
        return labeled
