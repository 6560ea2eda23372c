"""croc bench: figures that add up, and running out of memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from croc.cli import main
from tests.tiny import FLAGS

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
    assert figures["loaded"]["images"] == 24
    for word in (*STAGES, "images/s", "of preloaded batches", "bench"):
        assert word in printed
