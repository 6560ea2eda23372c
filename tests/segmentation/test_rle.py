"""Run-length encoded masks, decoded by loops written from the format's description."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.segmentation.rle import encode_mask, write_coco


def decode_mask(counts: str, size: list[int]) -> np.ndarray:
    numbers: list[int] = []
    position = 0
    while position < len(counts):
        value, shift, bits, more = 0, 0, 0, True
        while more:
            bits = ord(counts[position]) - 48
            value |= (bits & 31) << shift
            more, shift, position = bool(bits & 32), shift + 5, position + 1
        if bits & 16:
            value -= 1 << shift
        numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
    flat = np.repeat(np.arange(len(numbers)) % 2 == 1, numbers)
    return flat.reshape(size[::-1]).T


@pytest.mark.parametrize(
    "mask",
    [
        np.zeros((3, 4), bool),
        np.ones((3, 4), bool),
        np.eye(5, dtype=bool),
        np.random.default_rng(0).random((37, 61)) < 0.3,
        np.arange(600 * 500).reshape(600, 500) % 77_777 > 40_000,  # long runs of either length
    ],
    ids=["empty", "full", "diagonal", "noise", "long runs"],
)
def test_decoding_inverts_encoding(mask: np.ndarray):
    assert np.array_equal(decode_mask(encode_mask(mask), list(mask.shape)), mask)


def test_known_encoding():
    """Runs 1, 2, 1, 40: the last is written as its difference 38 = 6 + 32 · 1 from the second."""
    flat = np.repeat([False, True, False, True], [1, 2, 1, 40])
    assert encode_mask(flat.reshape(11, 4).T) == "121" + chr(48 + 32 + 6) + chr(48 + 1)


def test_coco_file_has_every_mask(tmp_path: Path):
    maps = {name: np.random.default_rng(seed).integers(0, 3, (9, 14), np.uint8)
            for seed, name in enumerate("ab")}  # fmt: skip
    maps["b"][maps["b"] == 1] = 2
    for name, classes in maps.items():
        Image.fromarray(classes).save(tmp_path / f"{name}.png")
    write_coco(tmp_path / "x.json", [(f"{n}.jpg", tmp_path / f"{n}.png") for n in maps], "pqr")
    coco = json.loads((tmp_path / "x.json").read_text())
    assert coco["categories"] == [{"id": k, "name": n} for k, n in enumerate("pqr")]
    images = [(entry["file_name"], entry["height"], entry["width"]) for entry in coco["images"]]
    assert images == [("a.jpg", 9, 14), ("b.jpg", 9, 14)]
    pairs = [(entry["image_id"], entry["category_id"]) for entry in coco["annotations"]]
    assert pairs == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 2)]
    for entry in coco["annotations"]:
        mask = list(maps.values())[entry["image_id"] - 1] == entry["category_id"]
        segmentation = entry["segmentation"]
        assert np.array_equal(decode_mask(segmentation["counts"], segmentation["size"]), mask)
        assert entry["area"] == mask.sum()
        y, x = mask.nonzero()
        assert entry["bbox"] == [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]
