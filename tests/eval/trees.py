"""Small data sets in the layouts of the real ones, with their odd cases."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.pictures import encode, write_tar  # noqa: F401
from tests.data.pictures import write as write_file

HEIGHT, WIDTH = 6, 8


def photograph(seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return encode(Image.fromarray(pixels).convert(mode), "JPEG", quality=95)


def label_map(*values: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> np.ndarray:
    """The values in columns, from left to right, again and again."""
    row = np.resize(np.array(values, np.uint8), size[0])
    return np.tile(row, (size[1], 1))


def gray_png(labels: np.ndarray) -> bytes:
    return encode(Image.fromarray(labels))


def palette_png(labels: np.ndarray) -> bytes:
    """Colors that say nothing about the indices; index 0 is black as in VOC and DAVIS."""
    image = Image.fromarray(labels)
    colors = np.random.default_rng(0).integers(1, 256, (256, 3), np.uint8)
    colors[0] = 0
    image.putpalette(colors.tobytes())
    return encode(image)


def panoptic_png(numbers: np.ndarray) -> bytes:
    channels = [numbers % 256, numbers // 256 % 256, numbers // 256**2]
    return encode(Image.fromarray(np.stack(channels, -1).astype(np.uint8)))


def write(root: Path, members: dict[str, bytes]) -> Path:
    for name, data in members.items():
        write_file(root / name, data)
    return root


def voc() -> dict[str, bytes]:
    """Palette PNGs for val; SBD's are gray; one photograph is gray."""
    sets = "ImageSets/Segmentation"
    return {
        f"{sets}/train.txt": b"a\n",
        f"{sets}/trainaug.txt": b"a\n/JPEGImages/b.jpg /SegmentationClassAug/b.png\n\n",
        f"{sets}/val.txt": b"c\nd\n",
        **{f"JPEGImages/{name}.jpg": photograph(seed) for seed, name in enumerate("abc")},
        "JPEGImages/d.jpg": photograph(3, "L"),
        "SegmentationClass/a.png": palette_png(label_map(0, 1)),
        "SegmentationClassAug/a.png": gray_png(label_map(0, 1)),
        "SegmentationClassAug/b.png": gray_png(label_map(0, 20, 255)),
        "SegmentationClass/c.png": palette_png(label_map(0, 15, 255)),
        "SegmentationClass/d.png": palette_png(label_map(255)),
    }


CATEGORIES = [
    {"id": 1, "name": "person", "supercategory": "person", "isthing": 1},
    {"id": 17, "name": "cat", "supercategory": "animal", "isthing": 1},
    {"id": 90, "name": "toothbrush", "supercategory": "indoor", "isthing": 1},
    {"id": 155, "name": "sea", "supercategory": "water", "isthing": 0},
    {"id": 184, "name": "tree-merged", "supercategory": "plant", "isthing": 0},
]


def panoptic(split: str = "val") -> dict[str, bytes]:
    """Columns: void, two cats, a crowd of persons, a toothbrush, the sea, a tree, an unlisted."""
    numbers = np.tile(np.array([0, 70_000, 300, 301, 9, 65_536, 257, 12_345]), (HEIGHT, 1))
    kinds = {70_000: 17, 300: 17, 301: 1, 9: 90, 65_536: 155, 257: 184}
    infos = [
        {"id": number, "category_id": kind, "iscrowd": int(number == 301)}
        for number, kind in kinds.items()
    ]
    annotations = [
        {"image_id": 9, "file_name": "000000000009.png", "segments_info": infos},
        {"image_id": 3, "file_name": "000000000003.png", "segments_info": []},
    ]
    content = {"annotations": annotations, "categories": CATEGORIES, "images": []}
    folder = f"annotations/panoptic_{split}2017"
    return {
        f"{folder}.json": json.dumps(content).encode(),
        f"{folder}/000000000009.png": panoptic_png(numbers),
        f"{folder}/000000000003.png": panoptic_png(numbers),
        f"{split}2017/000000000009.jpg": photograph(9, "L"),
        f"{split}2017/000000000003.jpg": photograph(3),
    }


def stuff(split: str = "val", labels: str = "stuffthingmaps/") -> dict[str, bytes]:
    """Values are ids less one: person, hair brush, banner, sea, wood, other, unlabeled."""
    values = label_map(0, 90, 91, 154, 181, 182, 255, 255)
    return {
        f"{split}2017/000000000009.jpg": photograph(9),
        f"{labels}{split}2017/000000000009.png": gray_png(values),
    }


def ade() -> dict[str, bytes]:
    return {
        "images/training/ADE_train_00000001.jpg": photograph(1),
        "annotations/training/ADE_train_00000001.png": gray_png(label_map(0, 1, 150)),
        "images/validation/ADE_val_00000001.jpg": photograph(2),
        "annotations/validation/ADE_val_00000001.png": gray_png(label_map(0, 2)),
    }


def folder() -> dict[str, bytes]:
    return {
        "images/train/x.jpg": photograph(1),
        "labels/train/x.png": gray_png(label_map(0, 4, 255)),
        "images/train/.hidden.jpg": b"",
        "images/val/y.jpg": photograph(2, "L"),
        "labels/val/y.png": palette_png(label_map(2, 6)),
        "images/val/z.jpg": photograph(3),
        "labels/val/z.png": gray_png(label_map(255)),
    }


def mini() -> dict[str, bytes]:
    """Category ids with a gap, background and a crowd."""
    categories = {str(c["id"]): [c["name"], c["supercategory"]] for c in CATEGORIES if c["isthing"]}
    return {
        "categories.json": json.dumps(categories).encode(),
        "images/train/1.jpg": photograph(1),
        "labels/train/1.png": gray_png(label_map(0, 1, 17, 90, 255)),
        "images/val/2.jpg": photograph(2),
        "labels/val/2.png": gray_png(label_map(0, 17)),
    }


def davis() -> dict[str, bytes]:
    """A sequence with three objects, one of which leaves; one that is in no list."""
    masks = {
        "camel": ((0, 1, 2, 5), (0, 1, 2, 255), (0, 1)),
        "drift": ((0, 1),) * 3,
        "unlisted": ((0, 255),) * 3,
    }
    tree = {"ImageSets/2017/val.txt": b"drift\ncamel\n"}
    for name, values in masks.items():
        for t, objects in enumerate(values):
            tree[f"JPEGImages/480p/{name}/{t:05d}.jpg"] = photograph(t)
            tree[f"Annotations/480p/{name}/{t:05d}.png"] = palette_png(label_map(*objects))
    return tree
