"""`croc evaluate` from flags to results.jsonl and pictures; --hold-out."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from croc.eval.datasets import LabeledImage, PairedData
from croc.eval.evaluate import split_training
from croc.results import read_results
from tests.eval.commands import SMALL, call, segmentation_tree, shrink
from tests.eval.fakes import Listed
from tests.eval.trees import gray_png, label_map, photograph, write


@pytest.mark.parametrize("protocol", list(SMALL))
def test_a_result_is_printed_written_and_drawn(protocol, run, tmp_path, capsys):
    data = "scenes:2" if protocol == "video" else "scenes:8"
    assert call(protocol, run, data, tmp_path) == 0
    (line,) = read_results(tmp_path)
    printed = capsys.readouterr()
    assert f"{next(iter(line['scores'].values())):.1f}" in printed.out
    assert line["protocol"] == protocol
    assert line["backbone"] == "tiny@3"
    assert line["data"] == data
    assert {"croc", "python", "torch", "timm"} <= set(line["versions"])
    assert line["machine"] == {"device": "cpu", "precision": "float32"}
    parts = {"video": {"videos"}, "kmeans": {"val"}, "within": {"val"}}
    assert set(line["count"]) == parts.get(protocol, {"train", "val"})
    with Image.open(tmp_path / line["picture"]) as picture:
        assert np.asarray(picture.convert("L")).std() > 10
    assert len(line["classes"]) == (2 if protocol == "video" else 13)


def test_all_runs_what_the_data_allow(run, tmp_path, monkeypatch, capsys):
    for name, flags in SMALL.items():
        values = dict(zip([f[2:].split(".")[1].replace("-", "_") for f in flags[::2]], flags[1::2]))
        shrink(monkeypatch, name, {key: int(value) for key, value in values.items()})
    folder = segmentation_tree(tmp_path / "photographs")
    assert call("all", run, "scenes:4", tmp_path / "out", "--data", "scenes:4", folder) == 0
    lines = read_results(tmp_path / "out")
    assert [(line["protocol"], line["data"]) for line in lines] == [
        *((x, data) for x in list(SMALL)[:4] for data in ("scenes:4", folder)),
        ("video", "scenes:4"),
    ]
    table = capsys.readouterr().out
    assert all(name in table for name in SMALL)


def test_finished_results_are_printed_when_a_later_one_fails(run, tmp_path, monkeypatch, capsys):
    shrink(monkeypatch, "linear", {"steps": 2, "image_px": 32})
    monkeypatch.setattr("croc.eval.protocols.protocols_of", lambda *_: ("linear",))
    bad = segmentation_tree(tmp_path / "t", **{"labels_val_2.png": gray_png(label_map(0, 7))})
    assert call("all", run, "x", tmp_path / "out", "--data", "scenes:4", bad) == 2
    printed = capsys.readouterr()
    assert "scenes:4" in printed.out
    assert "has the label 7" in printed.err
    assert {line["data"] for line in read_results(tmp_path / "out")} == {"scenes:4"}


def test_names_in_any_script_and_with_signs(run, tmp_path, capsys):
    """Markup of rich and formulas of matplotlib are shown as they are."""
    names = "[/b] a$_$b\n[red] :ok:\n道路\n"
    data = segmentation_tree(tmp_path / "ok", **{"classes.txt": names.encode()})
    assert call("linear", run, data, tmp_path / "out") == 0
    (line,) = read_results(tmp_path / "out")
    assert list(line["classes"]) == names.splitlines()
    assert line["picture"]
    printed = capsys.readouterr().out.replace("\n", " ")
    assert all(name in printed for name in ("[/b] a$_$b", "[red] :ok:", "道路"))


def test_all_takes_the_nearest_size_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "linear", {"steps": 2})
    shrink(monkeypatch, "kmeans", {"seeds": 1})
    shrink(monkeypatch, "video", {"short_px": 64})
    weights = "random:vit_small_patch14_reg4_dinov2"
    assert call("all", weights, "scenes:1", tmp_path, "--data", "scenes:1") == 0
    sizes = {line["protocol"]: line["config"] for line in read_results(tmp_path)}
    assert sizes["linear"]["image_px"] == 98
    assert sizes["video"]["short_px"] == 70


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
