"""`croc evaluate` called small, and a tree of photographs to call it on."""

from dataclasses import replace
from pathlib import Path

import pytest

from croc.cli import main
from croc.eval.protocols import DEFAULTS
from tests.eval.trees import gray_png, label_map, photograph, write

SMALL = {
    "linear": ("--linear.image-px", "32", "--linear.steps", "5", "--linear.train-px", "16"),
    "kmeans": ("--kmeans.image-px", "32", "--kmeans.label-px", "16", "--kmeans.seeds", "2"),
    "within": ("--within.image-px", "64", "--within.label-px", "16", "--within.seeds", "2"),
    "incontext": ("--incontext.image-px", "32", "--incontext.label-px", "16"),
    "video": ("--video.short-px", "64"),
}


def words(protocol: str, weights: Path | str, data: str, to: Path | str, *more: str) -> list[str]:
    options = ("--weights", str(weights), "--data", data, "--to", str(to), "--workers", "0")
    return ["evaluate", protocol, *options, *SMALL.get(protocol, ()), *more]


def call(protocol: str, weights: Path | str, data: str, to: Path, *more: str) -> int:
    return main(words(protocol, weights, data, to, *more))


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, int]) -> None:
    real = DEFAULTS[name]
    if name == "kmeans":
        values = {**values, "pca": 20}
    monkeypatch.setitem(DEFAULTS, name, lambda kind: replace(real(kind), **values))


def segmentation_tree(root: Path, **changed: bytes) -> str:
    members = {
        f"{kind}/{split}/{number}.{suffix}": content
        for split in ("train", "val")
        for number in range(4)
        for kind, suffix, content in (
            ("images", "jpg", photograph(number)),
            ("labels", "png", gray_png(label_map(0, 1, 2, 255))),
        )
    }
    members["classes.txt"] = b"one\ntwo\nthree\n"
    members |= {name.replace("_", "/", 2): data for name, data in changed.items()}
    write(root, members)
    return f"folder:{root}"
