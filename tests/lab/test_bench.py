"""croc bench: figures that add up, settings that run out of memory, and bad input."""

import gc
import json
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.lab import bench
from croc.lab.bench import BenchConfig, BenchTrainer, host_waits, plan, synthetic_batches
from croc.train.distributed import make_fabric
from tests.tiny import FLAGS, tiny_config

QUICK = ["--bench.steps", "2", "--bench.warmup", "1"]
STAGES = ["views", "teacher", "clustering", "heads", "loss", "student"]
STAGES += ["backward", "update", "EMA", "rest"]


def run_bench(to: Path, *flags: str) -> dict[str, Any]:
    assert main(["bench", "demo", *FLAGS, *QUICK, "--bench.to", str(to), *flags]) == 0
    with Image.open(to / "bench.png") as picture:
        assert min(picture.size) > 300
    assert {path.name for path in to.iterdir()} == {"bench.json", "bench.png"}
    return json.loads((to / "bench.json").read_text())


def test_figures_of_a_step_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = run_bench(tmp_path / "bench")
    printed = capsys.readouterr().out
    assert (results["recipe"], results["not_yet_measured"]) == ("demo", [])
    assert results["hardware"]["cores"] >= 1
    assert results["versions"]["torch"]
    (setting,) = results["settings"]
    assert setting["config"]["optim"]["batch"] == 8
    assert setting["sizes"]["tokens"] == 32
    figures = setting["figures"]
    assert list(figures["split_ms"]) == STAGES
    assert sum(figures["split_ms"].values()) == pytest.approx(figures["watched_ms"], rel=0.01)
    step = figures["step_ms"]
    assert 0 < step["p10"] <= step["median"] <= step["p90"]
    assert 8e3 / step["p90"] * 0.5 < figures["images_per_s"] < 8e3 / step["p10"] * 2
    assert figures["tflops"] == pytest.approx(figures["of_ceiling"] * results["ceiling"]["tflops"])
    assert figures["loss"] > 0
    assert (figures["host_waits"], figures["clustering_by"]) == (0, "definition")
    assert figures["loaded"]["images"] == 24
    for word in (*STAGES, "images/s", "of ready tensors", "of a large product", "bench"):
        assert word in printed


def test_out_of_memory_is_recorded_and_the_rest_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measure(fabric, setting, *rest):
        if setting.value > 8:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return original(fabric, setting, *rest)

    original = bench.measure
    monkeypatch.setattr(bench, "measure", measure)
    vary = ["--data.root", "--bench.vary", "tokens", "--bench.values"]
    settings = run_bench(tmp_path / "bench", *vary, "4", "2")["settings"]
    assert [setting["label"] for setting in settings] == ["2 × 2²", "2 × 4²"]
    assert [setting["config"]["views"]["size_px"] for setting in settings] == [16, 32]
    assert [setting["out_of_memory"] for setting in settings] == [False, True]
    printed = capsys.readouterr()
    assert "2 × 2²" in printed.out
    assert "out of memory: 2 × 4²" in printed.err
    assert main(["bench", "demo", *FLAGS, *vary, "4", "--bench.to", str(tmp_path / "none")]) == 2
    assert "lower --optim.batch" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "none" / "bench.json").exists()


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


def test_default_values_of_a_variation():
    cases: Any = (
        ("batch", "optim", "batch", [2, 4, 8, 16]),
        ("tokens", "views", "size_px", [16, 24, 32, 48, 64]),
        ("k-start", "cluster", "k_start", [4, 8, 12, 16, 24, 32]),
        ("heads", "cluster", "tokens", ["last", "values"]),
        ("model", "model", "name", [f"vit_{s}_patch16_224" for s in ("tiny", "small", "base")]),
    )
    for vary, section, name, expected in cases:
        settings = plan(tiny_config(), BenchConfig(vary=vary))
        assert [getattr(getattr(s.config, section), name) for s in settings] == expected


def test_a_setting_leaves_no_network_in_memory():
    config = tiny_config()
    trainer = BenchTrainer(make_fabric(config.run), config)
    trainer.next_step(next(synthetic_batches(config, 1, torch.device("cpu"))))
    student = weakref.ref(trainer.method.student)
    del trainer
    gc.collect()
    assert student() is None


def test_host_waits_are_separated_from_other_warnings(monkeypatch: pytest.MonkeyPatch):
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def wait() -> list[str]:
        with host_waits(torch.device("cuda")) as places:
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        return places

    with pytest.warns(UserWarning, match="something else"):
        (place,) = wait()
    assert modes == ["warn", "default"]
    assert place.startswith("test_bench.py:")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_host_waits_are_found():
    device = torch.device("cuda")
    numbers = torch.ones(3, device=device)
    with host_waits(device) as places:
        numbers.sum()
        numbers.sum().item()
    assert len(places) == 1
    assert places[0].startswith("test_bench.py:")
