"""croc bench, and the benchmarks at tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import chosen_k, folds, input, variance
from croc.cli import main
from croc.lab import bench
from tests.eval.fakes import Patches
from tests.tiny import FLAGS, tiny_config

TINY = "--weights random:vit_tiny_patch16_224"


NUMBERS = {  # a benchmark, its options and what it prints
    chosen_k: ("--run RUN --images 5 --seeds 3", "variance"),
    folds: (f"{TINY} --data scenes --image-px 32 --steps 5 --seeds 2 --max-images 9", "linear"),
    variance: (f"{TINY} --data scenes:8 --image-px 96", "position"),
}


@pytest.mark.parametrize("benchmark", NUMBERS, ids=lambda module: module.__name__)
def test_benchmarks_run(benchmark: Any, run: Path, capsys: pytest.CaptureFixture[str]):
    options, name = NUMBERS[benchmark]
    benchmark.main(options.replace("RUN", str(run)).split())
    assert json.loads(capsys.readouterr().out)[name] > 0


def test_input(tmp_path: Path):
    sizes = "--workers 1 --images 12 --size-px 64 48 --max-side-px 40 --batch 4 --steps 6"
    options = [*sizes.split(), "--step-ms", "0", "20", "--device", "cpu"]
    input.main([*options, "--to", str(tmp_path / "x.json")])
    free, busy = json.loads((tmp_path / "x.json").read_text())["images_per_s"]
    assert all(free[source] > 0 for source in ("pack", "tar shard", "JPEG files"))
    assert max(busy.values()) <= 4 / 0.020


def test_each_image_is_scored_by_a_layer_that_has_not_seen_it():
    pairs = folds.split_into_folds(Patches(12, 0), 5)
    assert sorted(number for _, scored in pairs for number in scored.numbers) == list(range(12))
    for train, scored in pairs:
        assert sorted(train.numbers + scored.numbers) == list(range(12))


QUICK = ["--bench.steps", "2", "--bench.warmup", "1"]
STAGES = ["views", "teacher", "clustering", "heads", "loss", "student"]
STAGES += ["backward", "update", "EMA", "rest"]


def test_figures_of_a_step_add_up(tmp_path: Path):
    assert main(["bench", "demo", *FLAGS, *QUICK, "--bench.to", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "bench.json").read_text())
    assert results["config"]["optim"]["batch"] == 8
    figures = results["figures"]
    assert list(figures["split_ms"]) == STAGES
    assert sum(figures["split_ms"].values()) == pytest.approx(figures["watched_ms"], rel=0.01)
    step = figures["step_ms"]
    assert 0 < step["p10"] <= step["median"] <= step["p90"]
    assert 8e3 / step["p90"] * 0.5 < figures["images_per_s"] < 8e3 / step["p10"] * 2
    assert figures["tflops"] == pytest.approx(figures["of_ceiling"] * results["ceiling"]["tflops"])
    assert figures["loaded"]["images"] == 24


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
