"""Masks in COCO's run-length encoding, written without pycocotools.

A mask is read column by column. `counts` are the lengths of its runs: first of zeros (which may be
0), then of ones, and so on. From the fourth on, each count is stored as the difference from the
count two positions earlier. A number is written as characters of five bits, the lowest first: bits
0 … 4 are the number's, bit 5 means that more follow, and 48 is added. The last character's highest
bit is the sign.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from croc.io import replacing


def encode_mask(mask: Bool[np.ndarray, "h w"]) -> str:
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    first = [0] if flat[:1].any() else []
    runs = np.diff([*first, 0, *edges.tolist(), flat.size]).tolist()
    differences = runs[:3] + [run - before for run, before in zip(runs[3:], runs[1:])]
    return "".join(map(_write_number, differences))


def _write_number(number: int) -> str:
    text = ""
    while True:
        bits, number = number & 31, number >> 5
        more = number != (-1 if bits & 16 else 0)
        text += chr(48 + bits + 32 * more)
        if not more:
            return text


def annotations(classes: UInt8[np.ndarray, "h w"], image: int) -> Iterable[dict[str, Any]]:
    """One for each class in a class map."""
    for number in np.unique(classes).tolist():
        mask = classes == number
        rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
        width, height = columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1
        yield {
            "image_id": image,
            "category_id": number,
            "segmentation": {"size": list(classes.shape), "counts": encode_mask(mask)},
            "area": int(mask.sum()),
            "bbox": [int(columns[0]), int(rows[0]), int(width), int(height)],
            "iscrowd": 0,
        }


def write_coco(path: Path, names: Sequence[tuple[str, Path]], classes: Sequence[str]) -> None:
    """All masks as one JSON, from image names and masks, with one mask in memory at a time.
    A category's id is its index, the value in the masks."""
    images, number = [], 0  # ids start at 1: COCO's evaluation takes 0 for "no match"
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write('{"annotations": [')
        for image, (name, mask_path) in enumerate(names, start=1):
            with Image.open(mask_path) as mask:
                array = np.array(mask)
            size = {"height": array.shape[0], "width": array.shape[1]}
            images.append({"id": image, "file_name": name, **size})
            for annotation in annotations(array, image):
                file.write(",\n" if number else "\n")
                number += 1
                file.write(json.dumps({"id": number, **annotation}))
        categories = [{"id": index, "name": name} for index, name in enumerate(classes)]
        file.write(
            f'],\n"images": {json.dumps(images)},\n"categories": {json.dumps(categories)}}}\n'
        )
