"""croc bench: figures that add up, and running out of memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from croc.cli import main
from croc.lab import bench
from tests.tiny import FLAGS, tiny_config

QUICK = ["--bench.steps", "2", "--bench.warmup", "1"]
STAGES = ["views", "teacher", "clustering", "heads", "loss", "student"]
STAGES += ["backward", "update", "EMA", "rest"]


def run_bench(to: Path, *flags: str) -> dict[str, Any]:
    assert main(["bench", "demo", *FLAGS, *QUICK, "--bench.to", str(to), *flags]) == 0
    return json.loads((to / "bench.json").read_text())


def test_figures_of_a_step_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = run_bench(tmp_path / "bench")
    printed = capsys.readouterr().out
    assert results["recipe"] == "demo"
    assert results["hardware"]["cores"] >= 1
    assert results["versions"]["torch"]
    assert results["config"]["optim"]["batch"] == 8
    figures = results["figures"]
    assert list(figures["split_ms"]) == STAGES
    assert sum(figures["split_ms"].values()) == pytest.approx(figures["watched_ms"], rel=0.01)
    step = figures["step_ms"]
    assert 0 < step["p10"] <= step["median"] <= step["p90"]
    assert 8e3 / step["p90"] * 0.5 < figures["images_per_s"] < 8e3 / step["p10"] * 2
    assert figures["tflops"] == pytest.approx(figures["of_ceiling"] * results["ceiling"]["tflops"])
    assert figures["loaded"]["images"] == 24
    for word in (*STAGES, "images/s", "of preloaded batches", "of a large matrix product", "bench"):
        assert word in printed


def test_out_of_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def measure(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["bench", "demo", *FLAGS, "--bench.to", str(tmp_path)]) == 2
    assert "out of GPU memory: try" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_flop_by_hand():
    """Per image of the tiny ViT (192 wide, 2 blocks) on two views of 4² patches of 8 px."""
    flop = bench.count_flop(tiny_config())
    patches, tokens, width = 16, 17, 192
    embedding = 2 * patches * width * 3 * 8 * 8
    blocks = 2 * (2 * 12 * width**2 * tokens + 2 * 2 * tokens**2 * width)
    assert flop["student"] == 2 * (embedding + blocks)
    assert flop["teacher"] == flop["student"] + 2 * 2 * patches * width  # the saliency
    assert flop["backward"] > 2 * flop["student"] - 2 * embedding
    assert list(flop) == ["teacher", "clustering", "heads", "student", "backward"]
