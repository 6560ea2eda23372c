"""Mistakes with `croc evaluate`: one clear line, exit code 2, nothing left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from croc.cli import main
from croc.eval.results import read_results
from croc.train.checkpoint import checkpoints
from tests.evals.commands import call, segmentation_tree, shrink
from tests.evals.trees import gray_png, label_map, photograph, write


def refused(capsys: pytest.CaptureFixture[str], to: Path, code: int) -> str:
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    last = said.err.splitlines()[-1]  # stages that had ended before have a line each
    assert last.startswith("croc: ")
    assert said.err.count("croc: ") == 1
    assert not to.exists()
    return last


@pytest.mark.parametrize(
    ("protocol", "weights", "data", "more", "said"),
    [
        ("linear", "RUN", "davis16:x", (), "linear cannot be scored on davis16:x"),
        ("video", "RUN", "voc12:x", (), "video cannot be scored on voc12:x"),
        ("linear", "RUN", "voc13:x", (), "no data set is called voc13:x"),
        ("linear", "RUN", "voc12:nowhere", (), "nowhere"),
        ("linear", "RUN", "voc12", (), "say where voc12 lies"),
        ("linear", "RUN", "scenes:0", (), "is no number of scenes"),
        ("linear", "nowhere", "scenes:4", (), "no such run or file"),
        ("linear", "random:vit_smal_patch16_224", "scenes:4", (), "vit_small_patch16"),
        ("linear", "RUN", "scenes:4", ("--linear.blocks", "9"), "has 2 blocks, not 9"),
        ("linear", "RUN", "scenes:4", ("--linear.rates", "0"), "--linear.rates must be"),
        ("linear", "RUN", "scenes:4", ("--linear.rate", "1"), "--linear.rate"),
        ("linear", "RUN", "scenes:4", ("--linear.epochs", "2"), "give one of them"),
        ("linear", "RUN", "scenes:4", ("--linear.image-px", "50"), "48 or 56 px would"),
        ("video", "RUN", "scenes:1", ("--video.short-px", "50"), "48 or 56 px would"),
        ("video", "RUN", "nosuch:x", (), "no data set is called nosuch:x"),
        ("linear", "random:vit_tiny_patch16_224@w.pth", "scenes:4", (), "takes no file"),
        ("linear", "random:vit_tiny_patch16_224.nonsense", "scenes:4", (), "has no weights"),
        ("linear", "timm:vit_tiny_patch16_224@.", "scenes:4", (), "is a folder"),
        ("linear", "random:vgg11", "scenes:4", (), "no feature map of any size"),
        ("linear", "random:swin_tiny_patch4_window7_224", "scenes:4", (), "no feature map"),
        ("linear", "RUN", "scenes:4", ("--workers", "-1"), "--workers must be 0 or more"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.pca", "193"), "backbone's width of 192"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.clusters", "5"), "fewer than the 13 classes"),
        ("incontext", "RUN", "scenes:4", ("--incontext.memory", "0"), "--incontext.memory"),
        ("video", "RUN", "scenes:1", ("--video.best", "0"), "--video.best must be at least 1"),
    ],
)
def test_bad_flags(
    protocol: str,
    weights: str,
    data: str,
    more: tuple[str, ...],
    said: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    to = tmp_path / "out"
    code = call(protocol, run if weights == "RUN" else weights, data, to, *more)
    assert said in refused(capsys, to, code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = call("linear", run, "scenes:4", tmp_path / "out", "--device", "cuda")
    assert "pass --device cpu" in refused(capsys, tmp_path / "out", code)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("labels_val_2.png", gray_png(label_map(0, 7)), "holds the label 7"),
        ("labels_val_2.png", gray_png(label_map(0, size=(3, 3))), "labels/val/2.png"),
        ("labels_train_1.png", b"no picture", "labels/train/1.png"),
        ("images_val_0.jpg", b"", "images/val/0.jpg"),
        ("images_val_9.jpg", photograph(9), "labels/val/9.png"),
        ("images_val_2.jpeg", photograph(9), "holds 2.jpeg and 2.jpg: which one is meant?"),
        ("classes.txt", "Straße\nWeg\n".encode("latin-1"), "classes.txt is no text in UTF-8"),
        ("classes.txt", b"a\nb\na\n", "names 'a' twice"),
        ("classes.txt", b"\n".join(b"%d" % i for i in range(256)), "256 classes, 255 are the most"),
        ("images_val_0.jpg", b"RIFF    WEBPVP8 ", "no picture of these kinds"),
    ],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_bad_data(
    name: str,
    content: bytes,
    said: str,
    workers: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    data = segmentation_tree(tmp_path / "tree", **{name: content})
    code = call("linear", run, data, tmp_path / "out", "--workers", workers)
    assert said in refused(capsys, tmp_path / "out", code)


@pytest.mark.parametrize("protocol", ["linear", "kmeans", "incontext"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_nothing_is_labelled(
    protocol: str, split: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if (protocol, split) == ("kmeans", "train"):
        return  # it never reads that part
    void = {f"labels_{split}_{number}.png": gray_png(label_map(255)) for number in range(4)}
    data = segmentation_tree(tmp_path / "tree", **void)
    more = ("--kmeans.pca", "5") if protocol == "kmeans" else ()
    code = call(protocol, run, data, tmp_path / "out", *more)
    assert "labelled" in refused(capsys, tmp_path / "out", code)


def test_all_needs_data(capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", "all", "--weights", "x", "--data"]) == 2
    assert "say which data" in capsys.readouterr().err


def test_what_was_finished_is_printed_when_a_later_one_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shrink(monkeypatch, "linear", {"steps": 2, "image_px": 32})
    shrink(monkeypatch, "kmeans", {"image_px": 32})
    bad = segmentation_tree(tmp_path / "t", **{"labels_val_2.png": gray_png(label_map(0, 7))})
    assert call("all", run, "x", tmp_path / "out", "--data", "scenes:4", bad) == 2
    said = capsys.readouterr()
    assert "scenes:4" in said.out
    assert "holds the label 7" in said.err
    assert {line["data"] for line in read_results(tmp_path / "out")} == {"scenes:4"}


def test_an_empty_split(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = segmentation_tree(tmp_path / "tree")
    for path in (tmp_path / "tree").glob("*/val/*"):
        path.unlink()
    code = call("linear", run, data, tmp_path / "out")
    assert "images/val" in refused(capsys, tmp_path / "out", code)


def test_spoiled_weights(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = (run / "config.json").read_text()
    whole = checkpoints(run)[-1].read_bytes()
    wide: dict[str, Any] = json.loads(config)
    wide["model"]["name"] = "vit_small_patch16_224"
    for name, page, content, said in (
        ("cut", config, whole[: len(whole) // 2], "cannot be read"),
        ("empty", config, b"", "cannot be read"),
        ("wide", json.dumps(wide), whole, "does not fit"),
    ):
        folder = write(tmp_path / name, {"checkpoints/step-00000002.pt": content})
        (folder / "config.json").write_text(page)
        code = call("linear", folder, "scenes:4", tmp_path / "out")
        assert said in refused(capsys, tmp_path / "out", code)


def test_results_go_to_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    assert call("linear", run, "scenes:4", tmp_path / "file" / "below") == 2
    assert call("linear", run, "scenes:4", tmp_path / "file") == 2
    assert "is a file, name a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
