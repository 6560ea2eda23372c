"""--hold-out: which images it chooses, and that the validation split is not read."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croc.eval.datasets import LabeledImage, PairedData
from croc.eval.evaluate import split_training
from croc.eval.results import read_results
from tests.eval.commands import call
from tests.eval.fakes import Listed
from tests.eval.trees import gray_png, label_map, photograph, write

TRAIN = [f"t{number}" for number in range(12)]


def names_of(names: list[str], share: float) -> dict[str, list[str]]:
    parts = split_training(Listed(np.zeros((len(names), 1, 1)), names), share)
    return {which: [part.read(n).name for n in range(len(part))] for which, part in parts.items()}


def tree(root: Path, classes: bool = True) -> str:
    """Twelve images to train on, and a broken validation split."""
    members = {"images/val/v.jpg": b"broken", "labels/val/v.png": b"broken"}
    for number, name in enumerate(TRAIN):
        members[f"images/train/{name}.jpg"] = photograph(number)
        members[f"labels/train/{name}.png"] = gray_png(label_map(0, 1, 2, 255))
    write(root, members | ({"classes.txt": b"one\ntwo\nthree\n"} if classes else {}))
    return f"folder:{root}"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the images that are read."""
    seen: set[str] = set()
    real = PairedData.read

    def watched(self: PairedData, index: int) -> LabeledImage:
        seen.add(self.name(index))
        return real(self, index)

    monkeypatch.setattr(PairedData, "read", watched)
    return seen


@settings(deadline=None)
@given(
    st.lists(st.text(max_size=8), min_size=4, max_size=40, unique=True),
    st.floats(0.13, 0.87),
    st.randoms(),
)
def test_the_parts_are_the_whole_in_any_order(names: list[str], share: float, shuffler: Random):
    parts = names_of(names, share)
    assert sorted(parts["train"] + parts["val"]) == sorted(names)
    assert len(parts["val"]) == round(share * len(names))
    larger = names_of(names, min(0.87, share + 0.1))
    assert set(parts["val"]) <= set(larger["val"])
    mixed = list(names)
    shuffler.shuffle(mixed)
    assert set(names_of(mixed, share)["val"]) == set(parts["val"])


def test_the_choice_is_the_same_on_every_machine():
    assert names_of(TRAIN, 0.25)["val"] == ["t0", "t2", "t7"]
    parts = names_of(TRAIN * 2, 0.5)  # images of one name stay together
    assert set(parts["train"]).isdisjoint(parts["val"])


@pytest.mark.parametrize(
    ("protocol", "classes"), [("linear", True), ("linear", False), ("kmeans", True)]
)
def test_the_validation_split_is_not_read(protocol, classes, run, tmp_path, read):
    data = tree(tmp_path / "tree", classes)
    more = ("--kmeans.pca", "5") if protocol == "kmeans" else ()
    assert call(protocol, run, data, tmp_path / "out", "--hold-out", "0.25", *more) == 0
    cached = set(names_of(TRAIN, 0.25)["val"])
    untrained = protocol == "kmeans"
    assert read == (cached if untrained else set(TRAIN))
    (line,) = read_results(tmp_path / "out")
    assert line["hold_out"] == 0.25
    assert line["count"] == {"held out": 3} | ({} if untrained else {"train": 9})
