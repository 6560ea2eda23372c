"""--hold-out: which images it takes, which of them are opened, and that its scores are its own."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from croc.cli import main
from croc.errors import UserError
from croc.eval import evaluate
from croc.eval.datasets import Labelled, PairedData, ScenesData, open_segmentation
from croc.eval.parts import open_parts, split_training
from croc.eval.protocols import linear_protocol, protocols_of
from croc.eval.results import read_results
from croc.eval.table.cells import FinishedCells, cell_key
from croc.eval.table.command import Wanted
from croc.eval.table.plan import plan_tasks
from tests.evals.commands import SMALL, call, shrink
from tests.evals.test_results import RESULT
from tests.evals.test_table import TINY, make_one
from tests.evals.trees import gray_png, label_map, photograph, write

TRAIN = [f"t{number}" for number in range(12)]
SIZES = ("--kmeans.pca", "5")


class Named:
    """Images of which only the names count."""

    classes: tuple[str, ...] = ("one",)

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> Labelled:
        pixel = np.zeros((1, 1), np.uint8)
        return Labelled(np.zeros((1, 1, 3), np.uint8), pixel, self.names[index])


def names_of(names: list[str], share: float) -> dict[str, list[str]]:
    parts = split_training(Named(names), share)
    return {which: [part.read(n).name for n in range(len(part))] for which, part in parts.items()}


def tree(root: Path, classes: bool = True, **changed: bytes) -> str:
    """Twelve images to train on, and a validation part that would be noticed: it is broken."""
    members = {f"images/train/{name}.jpg": photograph(n) for n, name in enumerate(TRAIN)}
    labels = gray_png(label_map(0, 1, 2, 255))
    members |= {f"labels/train/{name}.png": labels for name in TRAIN}
    members |= {"images/val/v.jpg": b"broken", "labels/val/v.png": b"broken"}
    if classes:
        members["classes.txt"] = b"one\ntwo\nthree\n"
    write(root, members | {f"labels/train/{name}.png": data for name, data in changed.items()})
    return f"folder:{root}"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the images that are read."""
    seen: set[str] = set()
    real = PairedData.read

    def watched(self: PairedData, index: int) -> Labelled:
        seen.add(self.name(index))
        return real(self, index)

    monkeypatch.setattr(PairedData, "read", watched)
    return seen


@given(
    st.lists(st.text(max_size=8), min_size=4, max_size=40, unique=True),
    st.floats(0.13, 0.87),
    st.randoms(),
)
def test_two_parts_that_are_the_whole_in_any_order(
    names: list[str], share: float, shuffler: Random
):
    parts = names_of(names, share)
    assert sorted(parts["train"] + parts["val"]) == sorted(names)
    assert len(parts["val"]) == round(share * len(names))
    mixed = list(names)
    shuffler.shuffle(mixed)
    assert {k: set(v) for k, v in names_of(mixed, share).items()} == {
        k: set(v) for k, v in parts.items()
    }


def test_the_same_on_every_machine():
    assert names_of(TRAIN, 0.25)["val"] == ["t0", "t2", "t7"]


def test_a_larger_share_holds_out_what_a_smaller_one_does():
    held = [set(names_of(TRAIN, share)["val"]) for share in (0.25, 0.5, 0.75)]
    assert held[0] < held[1] < held[2]


def test_images_of_one_name_stay_together():
    parts = names_of(TRAIN * 2, 0.5)
    assert set(parts["train"]).isdisjoint(parts["val"])
    assert len(parts["val"]) == 12


@pytest.mark.parametrize("protocol", ["linear", "kmeans", "within", "incontext"])
@pytest.mark.parametrize("classes", [True, False])
def test_the_validation_part_is_not_opened(
    protocol: str, classes: bool, run: Path, tmp_path: Path, read: set[str]
):
    data = tree(tmp_path / "tree", classes)
    more = SIZES if protocol == "kmeans" else ()
    assert call(protocol, run, data, tmp_path / "out", "--hold-out", "0.25", *more) == 0
    held = set(names_of(TRAIN, 0.25)["val"])
    untrained = protocol in ("kmeans", "within")
    assert read == (held if untrained else set(TRAIN))
    (line,) = read_results(tmp_path / "out")
    assert line["hold_out"] == 0.25
    assert line["count"] == {"held out": 3} | ({} if untrained else {"train": 9})


@pytest.mark.parametrize("protocol", ["linear", "incontext"])
def test_what_trains_is_never_scored(
    protocol: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The functions get what is their due; that they train on the first part is theirs."""
    seen: list[set[str]] = []

    def look(_: object, train: object, val: object, *__: object) -> None:
        seen.extend({part.name(n) for n in range(len(part))} for part in (train, val))  # pyright: ignore
        raise UserError("seen")

    monkeypatch.setattr(evaluate, f"evaluate_{protocol}", look)
    assert call(protocol, run, tree(tmp_path / "t"), tmp_path / "out", "--hold-out", "0.25") == 2
    parts = names_of(TRAIN, 0.25)
    assert seen == [set(parts["train"]), set(parts["val"])]


def test_scenes_have_a_training_part(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The video protocol of `all` is left out, since nothing could be held out of it."""
    for name in ("linear", "kmeans", "within", "incontext"):
        flags = SMALL[name]
        keys = [flag[2:].split(".")[1].replace("-", "_") for flag in flags[::2]]
        shrink(monkeypatch, name, dict(zip(keys, map(int, flags[1::2]))))
    splits: set[int] = set()
    real = ScenesData.read

    def watched(self: ScenesData, index: int) -> Labelled:
        splits.add(self._seed)
        return real(self, index)

    monkeypatch.setattr("croc.eval.evaluate.identify_data", lambda *_: "0" * 16)
    monkeypatch.setattr(ScenesData, "read", watched)
    more = ("--data", "scenes:8", "--hold-out", "0.5")
    assert call("all", run, "scenes:8", tmp_path, *more) == 0
    lines = read_results(tmp_path)
    assert [line["protocol"] for line in lines] == ["linear", "kmeans", "within", "incontext"]
    assert splits == {2**32}
    assert protocols_of("scenes", 0.5) == ("linear", "kmeans", "within", "incontext")


def test_scores_are_told_apart(run: Path, tmp_path: Path):
    for share in ((), ("--hold-out", "0.25"), ("--hold-out", "0.5")):
        assert call("linear", run, "scenes:8", tmp_path, *share) == 0
    lines = read_results(tmp_path)
    assert [line["hold_out"] for line in lines] == [0.0, 0.25, 0.5]
    assert len({line["picture"] for line in lines}) == 3
    assert len({json.dumps(line["scores"]) for line in lines}) == 3


def test_a_table_computes_each_share_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for share, kept in (("0", 0), ("0.25", 0), ("0.25", 1), ("0.5", 0), ("0", 1)):
        more = ("--protocols", "linear", "--hold-out", share)
        assert make_one(tmp_path, [TINY], *more, data=["scenes:8"]) == 0
        assert f"1 cells, {kept} of them finished" in capsys.readouterr().err
        note = "of the training parts, held out" in (tmp_path / "table.md").read_text()
        assert note == (share != "0")


def test_without_a_share_a_cell_is_what_it_was(tmp_path: Path):
    """Lines that were written before there were shares still count."""
    parts = {"config": {"a": 1}, "data_hash": "d", "weights_hash": "w", "network_hash": "n"}
    before = json.dumps(("linear", *parts.values(), "float32"), sort_keys=True)
    assert cell_key(protocol="linear", **parts, precision="float32") == before
    machine = {"precision": "float32"}
    line = {"protocol": "linear", **parts, "machine": machine, "scores": {"mIoU": 1.0}}
    held = {**line, "hold_out": 0.25, "scores": {"mIoU": 2.0}}
    text = "".join(json.dumps(each) + "\n" for each in (line, held))
    (tmp_path / "results.jsonl").write_text(text)
    cells = FinishedCells(tmp_path)
    key = cell_key(protocol="linear", **parts, precision="float32", hold_out=0.25)
    assert cells.get(before) == line
    assert cells.get(key) == held
    assert RESULT.key == "5ab94a30"
    assert replace(RESULT, hold_out=0.25).key != RESULT.key


def test_parts_are_opened_once_for_all_protocols(tmp_path: Path):
    data = tree(tmp_path / "tree")
    config = linear_protocol("folder")
    wanted = [Wanted(name, data, config, True, 0.5) for name in ("linear", "incontext")]
    one, other = (task.parts for task in plan_tasks(wanted, tmp_path))
    assert one["train"].data is one["val"].data is other["val"].data


@pytest.mark.parametrize(
    ("protocol", "data", "share", "said"),
    [
        ("linear", "TREE", "1", "--hold-out must be a share between 0 and 1"),
        ("linear", "TREE", "-0.1", "--hold-out must be a share between 0 and 1"),
        ("linear", "TREE", "nan", "--hold-out must be a share between 0 and 1"),
        ("linear", "TREE", "0.01", "of 12 training images leaves none to score"),
        ("kmeans", "TREE", "0.99", "of 12 training images leaves none to train on"),
        ("video", "scenes", "0.5", "--hold-out: videos have no training part"),
        ("video", "davis17:x", "0.5", "--hold-out: videos have no training part"),
        ("linear", "davis17:x", "0.5", "--hold-out: davis17:x has no training part"),
        ("all", "davis16:x", "0.5", "--hold-out: davis16:x has no training part"),
        ("all", "nosuch:x", "0.5", "no data set is called nosuch:x"),
        ("table", "davis16:x", "0.5", "--hold-out: davis16:x has no training part"),
        ("table", "TREE", "0.01", "of 12 training images leaves none to score"),
    ],
)
def test_refusals(
    protocol: str,
    data: str,
    share: str,
    said: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    given = tree(tmp_path / "tree") if data == "TREE" else data
    assert call(protocol, run, given, tmp_path / "out", f"--hold-out={share}") == 2
    heard = capsys.readouterr().err
    assert said in heard
    assert len(heard.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_table_of_videos_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ("--weights", TINY, "--data", "scenes", "--to", str(tmp_path / "out"))
    more = ("--protocols", "linear", "video", "--hold-out", "0.5")
    assert main(["evaluate", "table", *options, *more]) == 2
    assert "video cannot be scored on scenes with --hold-out" in capsys.readouterr().err


@pytest.mark.parametrize(("part", "said"), [("train", "trains"), ("val", "is scored")])
def test_parts_without_labels(part: str, said: str, run: Path, tmp_path: Path):
    void = {name: gray_png(label_map(255)) for name in names_of(TRAIN, 0.25)[part]}
    data = tree(tmp_path / "tree", **void)
    with pytest.raises(UserError, match=f"no pixel of the part that {said} is labelled"):
        open_parts("linear", data, hold_out=0.25)
    if part == "train":  # which K-means does not read
        assert set(open_parts("kmeans", data, hold_out=0.25)) == {"val"}


def test_classes_are_counted_in_both_parts_by_default(tmp_path: Path):
    data = tree(tmp_path / "tree", classes=False)
    write(tmp_path / "tree", {"labels/val/v.png": gray_png(label_map(6))})
    assert len(open_segmentation(data, "train").classes) == 7
    assert len(open_segmentation(data, "train", alone=True).classes) == 3
