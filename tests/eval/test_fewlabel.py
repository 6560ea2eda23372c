"""Few labels: against the protocols on each subset alone; which subsets; the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from croc.cli import main
from croc.eval import fewlabel
from croc.eval.datasets import LabeledImage, Subset
from croc.eval.features import PatchFeatures
from croc.eval.fewlabel import evaluate_few_labels, linear_config
from croc.eval.incontext import evaluate_incontext
from croc.eval.linear import evaluate_linear
from croc.eval.machine import Machine
from croc.eval.protocols import FewLabelConfig
from croc.method.photometric import normalize
from croc.results import read_results
from croc.weights.open import open_backbone
from tests.eval.commands import call
from tests.eval.fakes import Counting, MeanColor, Patches

CONFIG = FewLabelConfig(
    images=("1", "1/3", "all"), draws=2, image_px=32, label_px=32, steps=12, lr=3e-2, batch=4
)

SMALL = ("--fewlabel.image-px", "32", "--fewlabel.label-px", "16", "--fewlabel.steps", "3")


class PartlyLabeled(Patches):
    """Every third image has no label."""

    def read(self, index: int) -> LabeledImage:
        read = super().read(index)
        return replace(read, labels=np.full_like(read.labels, 255)) if index % 3 == 0 else read


def subsets_of(monkeypatch: pytest.MonkeyPatch, backbone: MeanColor) -> dict[str, list[set[int]]]:
    """The images that each linear layer was trained on, by number of images."""
    used: dict[str, list[set[int]]] = {}
    train_linear = fewlabel.train_linear

    def record(patches: PatchFeatures, *options: Any):
        names = [int(patches.data.name(index)) for index in range(len(patches.data))]
        used.setdefault(str(len(names)), []).append(set(names))
        return train_linear(patches, *options)

    with monkeypatch.context() as patched:
        patched.setattr(fewlabel, "train_linear", record)
        evaluate_few_labels(backbone, Machine(), PartlyLabeled(18, 0), Patches(3, 1), CONFIG)
    return used


def test_subsets_contain_smaller_ones_and_are_the_same_for_all_weights(monkeypatch):
    used = subsets_of(monkeypatch, MeanColor())
    assert used == subsets_of(monkeypatch, Counting())
    labeled = {index for index in range(18) if index % 3}
    assert {count: len(draws) for count, draws in used.items()} == {"1": 2, "4": 2, "12": 1}
    assert used["12"] == [labeled]
    assert used["4"][0] != used["4"][1]
    for one, four in zip(used["1"], used["4"]):
        assert one < four < labeled


@pytest.mark.parametrize("free", [0, 2**30])
def test_scores_equal_those_of_the_protocols_on_each_subset(monkeypatch, free):
    monkeypatch.setattr("croc.eval.features.free_memory", lambda: free)
    backbone, train, val = Counting(), Patches(6, 0), Patches(5, 1)
    report = evaluate_few_labels(backbone, Machine(), train, val, CONFIG)
    if free:
        assert backbone.images == len(train) + len(val)
    assert report.scores["images"] == {"1": 1, "1/3": 2, "all": 6}
    for text, count in report.scores["images"].items():
        scores: dict[str, list[float]] = {"linear": [], "in-context": []}
        for draw in range(1 if text == "all" else 2):
            order = fewlabel.epoch_order(6, 0, draw)
            part = Subset(train, tuple(sorted(order[:count].tolist())))
            linear = linear_config(CONFIG, draw, count)
            incontext = replace(CONFIG, seed=CONFIG.seed + draw)
            alone = evaluate_linear(MeanColor(), Machine(), part, val, linear)
            scores["linear"].append(alone.scores["mIoU"])
            alone = evaluate_incontext(MeanColor(), Machine(), part, val, incontext)
            scores["in-context"].append(alone.scores["mIoU"])
        for method, own in scores.items():
            name = f"{method} {text}"
            assert report.scores[name] == pytest.approx(np.mean(own), abs=1e-9)
            spread = report.scores["deviation"].get(name)
            assert spread == (None if text == "all" else pytest.approx(np.std(own), abs=1e-9))


def test_command_and_table(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = (*SMALL, "--fewlabel.images", "1", "all", "--fewlabel.draws", "2")
    assert call("fewlabel", run, "scenes:4", tmp_path, "--hold-out", "0.5", *flags) == 0
    (line,) = read_results(tmp_path)
    names = ["linear 1", "linear all", "in-context 1", "in-context all"]
    assert list(line["scores"])[:4] == names
    assert line["count"] == {"train": 2, "held out": 2}
    assert f"± {line['scores']['deviation']['linear 1']:.1f}" in capsys.readouterr().out
    table = ["evaluate", "table", "--protocols", "fewlabel", "--weights", f"run={run}", "colors"]
    where = ["--data", "scenes:4", "--to", str(tmp_path / "t"), "--workers", "0"]
    assert main([*table, *where, *flags]) == 0
    record = json.loads((tmp_path / "t" / "table.json").read_text())
    assert [column["title"] for column in record["columns"]] == [f"Scenes {x}" for x in names]
    deviations = [cell["deviation"] is not None for cell in record["rows"][1]["cells"]]
    assert deviations == [True, False, True, False]
    flags = (*SMALL, "--fewlabel.images", "1", "--fewlabel.methods", "incontext")
    assert call("fewlabel", run, "scenes:4", tmp_path / "one", *flags) == 0
    (line,) = read_results(tmp_path / "one")
    assert set(line["scores"]["by draw"]) == {"in-context 1"}


def test_colors_are_statistics_of_patches():
    """The mean and deviation of R, G, B and L, a, b in a patch and around it; a flat patch has no
    deviation and no texture."""
    pixels = torch.rand(1, 3, 48, 70, generator=torch.Generator().manual_seed(0))
    pixels[..., 32:, :32] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    backbone = open_backbone("colors")
    features = backbone.features(normalize(pixels))[0]
    assert features.shape == (40, 3, 5)
    for row, column in ((1, 2), (2, 4)):
        part = pixels[0, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16].flatten(1)
        torch.testing.assert_close(features[:3, row, column], part.mean(1))
        torch.testing.assert_close(features[10:13, row, column], part.std(1, correction=0))
    red = features[:, 2, 0]
    known = torch.tensor([53.24, 80.09, 67.20])  # of sRGB's red, by CIE's formulas
    torch.testing.assert_close(50 * red[3:6], known, atol=0.05, rtol=0)
    assert red[10:16].abs().max() < 5e-3  # the square root of rounding errors
    assert (features[6:10, 1, 2] > 0.1).all()
