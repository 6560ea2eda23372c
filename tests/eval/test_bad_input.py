"""Mistakes with `croc evaluate`: one clear line, exit code 2, no results left behind."""

from pathlib import Path

import pytest

from croc.eval.results import read_results
from tests.eval.commands import call, segmentation_tree, shrink, words
from tests.eval.trees import gray_png, label_map, photograph
from tests.refusals import check_refusal

TINY = "random:vit_tiny_patch16_224"
VOID = gray_png(label_map(255))
UNLABELED = {
    split: {f"labels_{split}_{number}.png": VOID for number in range(4)}
    for split in ("train", "val")
}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("linear davis16:x", "davis16:x does not support linear"),
        ("linear voc13:x", "no dataset is called voc13:x: pass one of voc12:PATH"),
        ("linear voc12:nowhere", "nowhere is missing: see "),
        ("linear scenes:0", "is not a number of scenes"),
        ("linear scenes:4 --weights nowhere", "no such run or file"),
        ("linear scenes:4 --linear.blocks 9", "has 2 blocks, not 9"),
        ("linear scenes:4 --linear.lrs 0", "--linear.lrs must be"),
        ("linear scenes:4 --linear.epochs 2", "pass exactly one of --linear.epochs"),
        ("linear scenes:4 --workers -1", "--workers must be at least 0"),
        ("kmeans scenes:4 --kmeans.clusters 5", "fewer than the 13 classes"),
        ("linear scenes:4 --hold-out 1", "--hold-out must be at least 0"),
        ("linear scenes:4 --hold-out 0.01", "4 training images leaves none to score"),
        ("video scenes --hold-out 0.5", "scenes does not support video"),
        ("linear davis17:x --hold-out 0.5", "davis17:x has no training split"),
        (f"linear scenes:4 --to {__file__}/x", "Not a directory"),
        (f"video scenes:1 --masks {Path(__file__).parent}", "exists and is not empty"),
        (f"table scenes:4 --weights {TINY} B=random:vit_smal", "B: --weights: timm has no"),
        ("table scenes:4 --weights A=x A=y", "give them LABEL=WEIGHTS"),
        ("table scenes:4 --weights =x", "give LABEL=WEIGHTS"),
        ("table scenes:4 --protocols", "none can be scored on scenes:4"),
        ("table voc12:x --protocols video", "none can be scored on voc12:x"),
        ("table x --protocols linear --data scenes:4 davis16:x", "none can be scored on davis16:x"),
        ("linear voc12:x --linear.resize keep-ratio", "--linear.resize keep-ratio"),
        (f"curve scenes:4 --weights {TINY}", "not the folder of a run with checkpoints"),
        ("curve scenes:4 --weights a=RUN a=RUN/", "give them LABEL=RUN"),
    ],
)
def test_bad_flags(command: str, message: str, run: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out/pictures").mkdir(parents=True)  # made before anything is computed
    protocol, data, *more = command.replace("RUN", str(run)).split()
    check_refusal(capsys, words(protocol, run, data, "out", *more), message)


@pytest.mark.parametrize(
    ("protocol", "changes", "workers", "message"),
    [
        ("linear", {"labels_val_2.png": gray_png(label_map(0, 7))}, 1, "has the label 7"),
        ("linear", {"labels_train_1.png": b"no image"}, 1, "labels/train/1.png"),
        ("linear", {"images_val_0.jpg": b"RIFF    WEBPVP8 "}, 0, "neither JPEG nor PNG"),
        ("linear", {"images_val_9.jpg": photograph(9)}, 0, "labels/val/9.png is missing"),
        ("linear", {"classes.txt": "Straße\n".encode("latin-1")}, 0, "is not UTF-8 text"),
        ("linear", {"classes.txt": b"a\nb\na\n"}, 0, "has a class twice"),
        ("linear", {"classes.txt": b"%d\n" * 256 % (*range(256),)}, 0, "more than 255 classes"),
        ("linear", {"images_val_0.png": photograph(9)}, 0, "has 0.jpg and 0.png"),
        ("linear", UNLABELED["train"], 0, "no training pixel is labeled"),
        ("linear", UNLABELED["val"], 0, "no scored pixel is labeled"),
        ("kmeans", UNLABELED["val"], 0, "no scored pixel is labeled"),
        ("incontext", UNLABELED["train"], 0, "no labeled patch for the memory"),
        ("within", UNLABELED["val"], 0, "no scored image has two labeled classes"),
    ],
)
def test_bad_data(protocol, changes, workers, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out/pictures").mkdir(parents=True)
    data = segmentation_tree(tmp_path / "tree", **changes)
    pca = ("--kmeans.pca", "5") if protocol == "kmeans" else ()
    more = (*pca, "--workers", str(workers))
    check_refusal(capsys, words(protocol, run, data, "out", *more), message)


def test_finished_results_are_printed_when_a_later_one_fails(run, tmp_path, monkeypatch, capsys):
    shrink(monkeypatch, "linear", {"steps": 2, "image_px": 32})
    monkeypatch.setattr("croc.eval.protocols.protocols_of", lambda *_: ("linear",))
    bad = segmentation_tree(tmp_path / "t", **{"labels_val_2.png": gray_png(label_map(0, 7))})
    assert call("all", run, "x", tmp_path / "out", "--data", "scenes:4", bad) == 2
    printed = capsys.readouterr()
    assert "scenes:4" in printed.out
    assert "has the label 7" in printed.err
    assert {line["data"] for line in read_results(tmp_path / "out")} == {"scenes:4"}
