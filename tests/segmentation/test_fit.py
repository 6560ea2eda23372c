"""`segment fit` trains the evaluation's heads on all images, and scores them on held-out images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.eval.datasets import open_segmentation
from croc.eval.evaluate import split_training
from croc.eval.features import PatchFeatures, fill_unlabeled, score
from croc.eval.incontext import fill_memory
from croc.eval.linear import evaluate_linear, train_linear
from croc.eval.machine import Machine
from croc.eval.protocols import InContextConfig, linear_protocol
from croc.segmentation.segmenter import load_segmenter
from croc.weights.open import open_backbone

WEIGHTS = "random:vit_tiny_patch16_224"
SMALL = ("--linear.image-px", "64", "--linear.train-px", "16", "--linear.score-px", "16")
STEPS = ("--linear.steps", "60")
CONFIG = {"image_px": 64, "train_px": 16, "score_px": 16}


def make_data(root: Path, count: int, classes: tuple[str, ...] = ("dark", "bright")) -> str:
    """Gray squares whose brightness is their class; one corner is unlabeled."""
    generator = np.random.default_rng(0)
    for split, images in (("train", count), ("val", 4)):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            labels = generator.integers(0, 2, (4, 5), np.uint8).repeat(10, 0).repeat(10, 1)
            Image.fromarray(60 + 130 * labels).convert("RGB").save(
                root / "images" / split / f"{number}.png"
            )
            labels[:10, :10] = 255
            Image.fromarray(labels).save(root / "labels" / split / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(classes))
    return f"folder:{root}"


def fit(data: str, to: Path, *more: str, kind: str = "linear") -> int:
    small = SMALL if kind == "linear" else ("--incontext.image-px", "64", "--kind", "incontext")
    options = f"--weights {WEIGHTS} --data {data} --to {to} --workers 0 --precision float32"
    return main(["segment", "fit", *options.split(), *small, *more])


def facts(folder: Path) -> dict:
    return json.loads((folder / "head.json").read_text())["facts"]


def config_of(folder: Path):
    chosen = {name: facts(folder)["config"][name] for name in ("steps", "weight_decay_scale")}
    return replace(linear_protocol("folder"), **CONFIG, **chosen)


def test_linear_head_equals_that_of_the_evaluation(tmp_path: Path):
    data = make_data(tmp_path / "data", 6)
    assert fit(data, tmp_path / "head", *STEPS) == 0
    segmenter, config = load_segmenter(tmp_path / "head"), config_of(tmp_path / "head")
    train, val = (open_segmentation(data, split) for split in ("train", "val"))
    backbone = open_backbone(WEIGHTS).float()
    layer = train_linear(PatchFeatures(backbone, Machine(), train, 64, 16, 1), config)[0]
    images = torch.randn(2, 3, 64, 64)
    expected = layer(backbone.features(images))
    torch.testing.assert_close(segmenter.scores(images), expected, atol=1e-3, rtol=1e-4)
    patches = PatchFeatures(segmenter.backbone, Machine(), val, 64, 16, 1)
    head: Any = segmenter.head
    expected = evaluate_linear(backbone, Machine(), train, val, config).scores
    assert score(patches, [head])[0].scores == pytest.approx(expected, abs=0.05)
    assert segmenter.classes == ("dark", "bright")
    assert set(facts(tmp_path / "head")["score"]["classes"]) == {"dark", "bright"}


def test_incontext_head_equals_that_of_the_evaluation(tmp_path: Path):
    data = make_data(tmp_path / "data", 5)
    assert fit(data, tmp_path / "head", kind="incontext") == 0
    segmenter = load_segmenter(tmp_path / "head")
    train = open_segmentation(data, "train")
    backbone, config = open_backbone(WEIGHTS).float(), InContextConfig(image_px=64)
    memory = fill_memory(PatchFeatures(backbone, Machine(), train, 64, 448, 1), config)
    features = backbone.features(torch.randn(2, 3, 64, 64))
    torch.testing.assert_close(segmenter.head(features), memory(features))
    assert 0 <= facts(tmp_path / "head")["score"]["mIoU"] <= 100


def test_held_out_images_are_scored_by_a_head_trained_without_them(tmp_path: Path):
    data = make_data(tmp_path / "data", 10)
    assert fit(data, tmp_path / "head", *STEPS, "--hold-out", "0.3") == 0
    score = facts(tmp_path / "head")["score"]
    assert score["how"] == "on 3 held-out images by a head trained on 7"
    parts = split_training(open_segmentation(data, "train", alone=True), 0.3)
    backbone, config = open_backbone(WEIGHTS).float(), config_of(tmp_path / "head")
    expected = evaluate_linear(backbone, Machine(), parts["train"], parts["val"], config).scores
    assert score["mIoU"] == pytest.approx(expected["mIoU"])
    assert facts(tmp_path / "head")["images"] == 10


def test_one_image_is_fitted_but_not_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = make_data(tmp_path / "data", 1, ("dark", "bright", "absent"))
    assert fit(data, tmp_path / "head") == 0
    printed = capsys.readouterr()
    assert "3 classes from 1 image, not scored" in printed.out
    assert "no pixels are labeled absent: the head cannot learn these classes" in printed.err
    saved = facts(tmp_path / "head")
    assert saved["score"] is None
    assert saved["labeled pixels"]["absent"] == 0


def test_thin_strokes_are_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One of a pixel, on images of 400 × 300 px that are reduced to 16 × 16 labels."""
    data = make_data(tmp_path / "data", 2)
    for path in (tmp_path / "data" / "labels" / "train").iterdir():
        labels = np.full((300, 400), 255, np.uint8)
        labels[20, 30:120], labels[200, 250:390] = 0, 1
        Image.fromarray(labels).save(path)
        Image.fromarray(labels).convert("RGB").save(tmp_path / "data/images/train" / path.name)
    assert fit(data, tmp_path / "head", "--hold-out", "0") == 0
    counts = facts(tmp_path / "head")["labeled pixels"]
    assert counts == {"dark": 2 * 4, "bright": 2 * 6}
    assert "no pixels are labeled" not in capsys.readouterr().err


def test_areas_take_their_most_frequent_label():
    labels = np.array([[255, 1, 255, 255], [2, 2, 255, 255], [3, 3, 7, 255], [3, 3, 255, 255]])
    small = np.array([[255, 255], [5, 255]], np.uint8)
    filled = fill_unlabeled(small, labels.astype(np.uint8))
    assert filled.tolist() == [[2, 255], [5, 7]]
