"""Mistakes with `croc evaluate`: one clear line, exit code 2, nothing left behind."""

from pathlib import Path

import pytest
import torch

from croc.eval.results import read_results
from tests.eval.commands import call, segmentation_tree, shrink
from tests.eval.trees import gray_png, label_map, photograph

PCA = ("--kmeans.pca", "5")
VOID = gray_png(label_map(255))
UNLABELLED = {
    split: {f"labels_{split}_{number}.png": VOID for number in range(4)}
    for split in ("train", "val")
}


def error_of(capsys: pytest.CaptureFixture[str], to: Path, code: int) -> str:
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    last = printed.err.splitlines()[-1]  # before it may come a line for each finished stage
    assert last.startswith("croc: ")
    assert printed.err.count("croc: ") == 1
    assert not to.exists()
    return last


@pytest.mark.parametrize(
    ("protocol", "weights", "data", "more", "message"),
    [
        ("linear", "RUN", "davis16:x", (), "linear cannot be scored on davis16:x"),
        ("video", "RUN", "voc12:x", (), "video cannot be scored on voc12:x"),
        ("linear", "RUN", "voc13:x", (), "no data set is called voc13:x: pass one of voc12:PATH"),
        ("linear", "RUN", "voc12:nowhere", (), "nowhere is missing: get VOC2012"),
        ("linear", "RUN", "scenes:0", (), "is not a number of scenes"),
        ("linear", "nowhere", "scenes:4", (), "no such run or file"),
        ("linear", "RUN", "scenes:4", ("--linear.blocks", "9"), "has 2 blocks, not 9"),
        ("linear", "RUN", "scenes:4", ("--linear.rates", "0"), "--linear.rates must be"),
        ("linear", "RUN", "scenes:4", ("--linear.epochs", "2"), "give one of them"),
        ("linear", "RUN", "scenes:4", ("--linear.image-px", "50"), "48 or 56 px would"),
        ("linear", "RUN", "scenes:4", ("--linear.crop", "0"), "--linear.crop must be"),
        ("video", "RUN", "scenes:1", ("--video.short-px", "50"), "48 or 56 px would"),
        ("linear", "RUN", "scenes:4", ("--workers", "-1"), "--workers must be 0 or more"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.pca", "193"), "backbone's width of 192"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.clusters", "5"), "fewer than the 13 classes"),
        ("incontext", "RUN", "scenes:4", ("--incontext.temperature", "nan"), "must be finite"),
        ("video", "RUN", "scenes:1", ("--video.best", "0"), "--video.best must be at least 1"),
        ("linear", "RUN", "scenes:4", ("--hold-out", "1"), "a share between 0 and 1"),
        ("linear", "RUN", "scenes:4", ("--hold-out", "0.01"), "4 training images leaves none to s"),
        ("kmeans", "RUN", "scenes:4", ("--hold-out", "0.99"), "leaves none to train on"),
        ("video", "RUN", "scenes", ("--hold-out", "0.5"), "videos have no training split"),
        ("linear", "RUN", "davis17:x", ("--hold-out", "0.5"), "davis17:x has no training split"),
        ("all", "RUN", "nosuch:x", ("--hold-out", "0.5"), "no data set is called nosuch:x"),
        ("all", "RUN", "scenes", ("--data",), "pass at least one data set"),
    ],
)
def test_bad_flags(protocol, weights, data, more, message, run, tmp_path, capsys):
    to = tmp_path / "out"
    code = call(protocol, run if weights == "RUN" else weights, data, to, *more)
    assert message in error_of(capsys, to, code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = call("linear", run, "scenes:4", tmp_path / "out", "--device", "cuda")
    assert "pass --device cpu" in error_of(capsys, tmp_path / "out", code)


@pytest.mark.parametrize(
    ("protocol", "changes", "workers", "message"),
    [
        ("linear", {"labels_val_2.png": gray_png(label_map(0, 7))}, 1, "has the label 7"),
        ("linear", {"labels_train_1.png": b"no image"}, 1, "labels/train/1.png"),
        ("linear", {"images_val_0.jpg": b"RIFF    WEBPVP8 "}, 0, "neither JPEG nor PNG"),
        ("linear", {"images_val_9.jpg": photograph(9)}, 0, "labels/val/9.png is missing"),
        ("linear", {"images_val_2.jpeg": photograph(9)}, 0, "has both 2.jpeg and 2.jpg"),
        ("linear", {"classes.txt": "Straße\n".encode("latin-1")}, 0, "is not UTF-8 text"),
        ("linear", {"classes.txt": b"a\nb\na\n"}, 0, "has the class 'a' twice"),
        ("linear", {"classes.txt": b"\n".join(b"%d" % i for i in range(256))}, 0, "256 classes"),
        ("linear", UNLABELLED["train"], 0, "no training pixel is labelled"),
        ("linear", UNLABELLED["val"], 0, "no scored pixel is labelled"),
        ("kmeans", UNLABELLED["val"], 0, "no scored pixel is labelled"),
        ("incontext", UNLABELLED["train"], 0, "no labelled patch for the memory"),
        ("within", UNLABELLED["val"], 0, "no scored image has two labelled classes"),
    ],
)
def test_bad_data(protocol, changes, workers, message, run, tmp_path, capsys):
    data = segmentation_tree(tmp_path / "tree", **changes)
    more = (*(PCA if protocol == "kmeans" else ()), "--workers", str(workers))
    code = call(protocol, run, data, tmp_path / "out", *more)
    assert message in error_of(capsys, tmp_path / "out", code)


def test_finished_results_are_printed_when_a_later_one_fails(run, tmp_path, monkeypatch, capsys):
    shrink(monkeypatch, "linear", {"steps": 2, "image_px": 32})
    monkeypatch.setattr("croc.eval.command.protocols_of", lambda *_: ("linear",))
    bad = segmentation_tree(tmp_path / "t", **{"labels_val_2.png": gray_png(label_map(0, 7))})
    assert call("all", run, "x", tmp_path / "out", "--data", "scenes:4", bad) == 2
    printed = capsys.readouterr()
    assert "scenes:4" in printed.out
    assert "has the label 7" in printed.err
    assert {line["data"] for line in read_results(tmp_path / "out")} == {"scenes:4"}


def test_results_need_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    for to in (tmp_path / "file" / "below", tmp_path / "file"):
        assert call("linear", run, "scenes:4", to) == 2
        assert "is a file, pass a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
