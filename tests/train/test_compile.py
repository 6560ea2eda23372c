"""Training with a captured CUDA graph equals eager training."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from croc.config import PretrainConfig, RunConfig
from croc.io import read_metrics
from croc.train.compile import WARM_UPS
from croc.train.distributed import make_fabric
from croc.train.loop import Trainer, pretrain, schedule_at
from tests.kernels.interpreter import forbid_synchronization
from tests.method.test_croc import make_canvases
from tests.tiny import tiny_config, tiny_dino, tiny_mae


def tiny(part: str, **changes: object) -> PretrainConfig:
    """The tiny configuration with changes to one part."""
    config = tiny_config()
    changed = replace(getattr(config, part), **changes)
    return replace(config, **{part: changed})


def with_early_views() -> PretrainConfig:
    """Six steps with small views, then six with large ones, so that both are captured."""
    config = tiny("views", early_px=16, early_epochs=2)
    return replace(config, optim=replace(config.optim, epochs=4))


CONFIGS = {
    "croc": tiny_config,
    "dino": tiny_dino,
    "mae": tiny_mae,
    "released": lambda: tiny("cluster", variant="released"),
    "sinkhorn": lambda: tiny("loss", centering="sinkhorn"),
    # The prototypes are frozen for six steps, of which the first three are eager.
    "frozen beyond the capture": lambda: tiny("loss", frozen_prototype_epochs=2),
    "micro-batches": lambda: tiny_config(micro_batch=3),
    "early views": with_early_views,
}


def metrics_of(config: PretrainConfig, folder: Path, **run: object) -> list[dict[str, float | int]]:
    run = {"accelerator": "cuda", "devices": 1, "precision": "float32", **run}
    settings = replace(config.run, folder=str(folder), **run)
    return read_metrics(pretrain(replace(config, run=settings), "tiny"))


@pytest.mark.cuda
@pytest.mark.parametrize("name", list(CONFIGS))
def test_run_with_cuda_graph_equals_eager_run(name: str, tmp_path: Path):
    eager, captured = (
        metrics_of(CONFIGS[name](), tmp_path / str(flag), compile=False, cuda_graph=flag)
        for flag in (False, True)
    )
    assert len(captured) in (9, 12)
    for one, other in zip(captured, eager, strict=True):
        assert one.keys() == other.keys()
        for metric in one.keys() - {"images_per_s", "seconds", "time"}:
            assert one[metric] == pytest.approx(other[metric], rel=2e-3, abs=2e-4), metric


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_steps_are_captured_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replays: list[int] = []
    real = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), real(graph))[1]
    )
    captured = metrics_of(tiny_config(), tmp_path / "captured", compile=True)
    assert len(replays) == 9 - WARM_UPS
    eager = metrics_of(tiny_config(), tmp_path / "eager", compile=True, cuda_graph=False)
    assert len(replays) == 9 - WARM_UPS
    for one, other in zip(captured, eager, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-3)


@pytest.mark.cuda
def test_captured_step_never_synchronizes_and_does_not_modify_the_batch():
    config = tiny_config()
    run = RunConfig(accelerator="cuda", devices=1, compile=False, cuda_graph=True)
    fabric = make_fabric(run)
    trainer = Trainer(fabric, replace(config, run=run))
    canvases = make_canvases(config).to(fabric.device)
    before = canvases.copied()
    losses = []
    for step in range(WARM_UPS + 5):
        schedule = schedule_at(step, config.optim, 3)
        torch.cuda.synchronize()
        with forbid_synchronization() if step > WARM_UPS else nullcontext():
            metrics = trainer.step(canvases, schedule)
            losses.append(metrics["loss"].clone())
    assert torch.equal(before.pixels, canvases.pixels)
    assert torch.equal(before.sample_keys, canvases.sample_keys)
    assert len({round(loss.item(), 6) for loss in losses}) == len(losses)
