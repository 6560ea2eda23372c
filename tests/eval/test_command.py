"""`croc evaluate` from flags to results.jsonl and pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from croc.eval.features import Example
from croc.eval.pictures import class_colors, segmentation_figure
from croc.eval.results import read_results
from tests.eval.commands import SMALL, call, segmentation_tree, shrink
from tests.eval.trees import gray_png, label_map


@pytest.mark.parametrize("protocol", list(SMALL))
def test_a_result_is_printed_written_and_drawn(protocol, run, tmp_path, capsys):
    data = "scenes:2" if protocol == "video" else "scenes:8"
    assert call(protocol, run, data, tmp_path) == 0
    (line,) = read_results(tmp_path)
    printed = capsys.readouterr()
    assert f"{next(iter(line['scores'].values())):.1f}" in printed.out
    assert f"{protocol} on {data}" in printed.err
    assert line["protocol"] == protocol
    assert line["backbone"] == "tiny@3"
    assert line["data"] == data
    assert len(line["weights_hash"]) == 16
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
    printed = capsys.readouterr()
    assert all(
        name in printed.out.replace("\n", " ") for name in ("[/b] a$_$b", "[red] :ok:", "道路")
    )
    assert "Warning" not in printed.err


def test_all_takes_the_nearest_size_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "linear", {"steps": 2})
    shrink(monkeypatch, "kmeans", {"seeds": 1})
    shrink(monkeypatch, "video", {"short_px": 64})
    weights = "random:vit_small_patch14_reg4_dinov2"
    assert call("all", weights, "scenes:1", tmp_path, "--data", "scenes:1") == 0
    sizes = {line["protocol"]: line["config"] for line in read_results(tmp_path)}
    assert sizes["linear"]["image_px"] == 98
    assert sizes["video"]["short_px"] == 70


def test_a_figure_shows_image_truth_and_prediction(tmp_path: Path):
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0] = 255
    truth = torch.zeros(20, 30, dtype=torch.long)
    predicted = torch.ones(20, 30, dtype=torch.long)
    path = tmp_path / "figure.png"
    segmentation_figure([Example(image, truth, predicted)] * 2, ("a <b>", "c"), path, "title")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    colors = [(255, 0, 0), *(np.round(255 * class_colors(2)).astype(int))]
    shares = [(np.abs(pixels - color).max(axis=1) <= 1).mean() for color in colors]
    assert min(shares) > 0.1
