"""Steps with non-finite gradients are skipped and counted; signs of collapse are reported."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from croc.config import CrocConfig
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.method.distributed import local_shard
from croc.method.optim import Guard
from croc.train.health import LINES, Health
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoint_path, checkpoints, load_checkpoint
from tests.tiny import tiny_config
from tests.train import after_gradients

Metrics = dict[str, torch.Tensor]
Damage = Callable[[Croc, Metrics], None]


def nan_gradient(method: Croc, _: Metrics) -> None:
    gradient = method.student.get_parameter("backbone.vit.blocks.1.attn.qkv.weight").grad
    local_shard(gradient)[3, 5] = math.nan


def inf_gradient(method: Croc, _: Metrics) -> None:
    gradient = method.student.get_parameter("backbone.vit.norm.bias").grad
    gradient[0] = math.inf


def inf_loss(_: Croc, metrics: Metrics) -> None:
    metrics["loss"] = metrics["loss"] * math.inf


def every_step(folder: Path, **run: object) -> CrocConfig:
    return tiny_config(folder, checkpoint_every_steps=1, keep_every_steps=1, report=False, **run)


@pytest.mark.parametrize("damage", [nan_gradient, inf_loss])
def test_non_finite_step_is_skipped_and_counted(tmp_path, monkeypatch, damage: Damage, capsys):
    """A resumed run continues the count."""
    after_gradients(monkeypatch, {4: damage, 6: damage})
    for end in (5, 7):
        folder = pretrain(every_step(tmp_path / "run", stop_after_steps=end), "tiny")
    states = [load_checkpoint(path) for path in checkpoints(folder)]
    assert [state["skipped"] for state in states] == [0, 0, 0, 1, 2]
    assert all(value.isfinite().all() for value in states[-1]["modules"]["student"].values())
    output = capsys.readouterr().err
    for number, times in ((1, 1), (2, 1), (3, 0)):
        message = f"{number} steps skipped so far (non-finite gradient)"
        assert output.count(message) == times
    metric = "loss" if damage is inf_loss else "gradient_norm"
    assert [line["step"] for line in read_metrics(folder) if line[metric] is None] == [4, 6]


def check_step_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, **run: object
) -> None:
    # Not step 4, the first of an epoch: there the prototypes get their first optimizer state.
    after_gradients(monkeypatch, {5: damage})
    folder = pretrain(every_step(folder, stop_after_steps=5, **run), "tiny")
    before, after = (load_checkpoint(checkpoint_path(folder, step)) for step in (4, 5))
    assert (before["skipped"], after["skipped"]) == (0, 1)
    for name, value in before["modules"]["student"].items():
        assert torch.equal(value, after["modules"]["student"][name]), name
    states = (each["optimizer"]["state"].values() for each in (before, after))
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_fused_optimizer_skips_non_finite_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The path for GPUs, with torch's fused optimizer for CPUs."""
    real, init = torch.optim.AdamW, Guard.__init__

    def skip_on_device(self: Guard, *arguments) -> None:
        init(self, *arguments)
        self._skips_on_device = True

    monkeypatch.setattr(Guard, "__init__", skip_on_device)
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: real(*a, **k | {"fused": True}))
    check_step_is_skipped(tmp_path / "run", monkeypatch, nan_gradient)


@pytest.mark.cuda
@pytest.mark.parametrize("damage", [nan_gradient, inf_gradient, inf_loss])
def test_non_finite_gradient_is_skipped_on_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
):
    gpu = {"accelerator": "cuda", "devices": 1, "compile": False, "cuda_graph": False}
    check_step_is_skipped(tmp_path / "run", monkeypatch, damage, **gpu)


@pytest.mark.usefixtures("own_environment")
def test_consecutive_non_finite_steps_end_the_run(tmp_path: Path, monkeypatch):
    after_gradients(monkeypatch, dict.fromkeys(range(4, 100), nan_gradient))
    config = tiny_config(tmp_path / "run", max_skipped=3, strategy="fsdp", report=False)
    with pytest.raises(UserError, match="steps 4 to 6 had no finite gradient") as error:
        pretrain(config, "tiny")
    text = str(error.value)
    assert "in the last one: gradient_norm); the last checkpoint is step-00000002.pt" in text
    assert "\n" not in text
    assert [path.stem for path in checkpoints(tmp_path / "run")] == ["step-00000002"]


HEALTHY = {"entropy_image": 2.0, "entropy_cluster": 2.0, "mean_k": 3.1, "valid_fraction": 0.6}
HEALTHY |= {"effective_clusters": 1.4}


@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("entropy_image", 0.0, "the image level has collapsed to one prototype"),
        ("entropy_image", math.log(64), "the image level has become uniform"),
        ("entropy_cluster", 1e-4, "the cluster level has collapsed to one prototype"),
        ("mean_k", 3.0, "every image gets the same K"),
        ("valid_fraction", 0.0, "no cluster is in both views"),
        ("effective_clusters", 2.1, "a higher --cluster.sharpness"),
    ],
)
def test_persistent_sign_of_collapse_is_reported_once(metric: str, value: float, message: str):
    health, sign = Health(tiny_config()), HEALTHY | {metric: value}
    for _ in range(3):
        assert all(health.warnings(sign) == [] for _ in range(LINES - 1))
        assert health.warnings(HEALTHY) == []
    warnings = [health.warnings(sign) for _ in range(3 * LINES)]
    assert [len(each) for each in warnings].index(1) == LINES - 1
    assert sum(map(len, warnings)) == 1
    assert message in warnings[LINES - 1][0]


def test_run_reports_signs_of_collapse(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("croc.train.health.LINES", 4)
    monkeypatch.setattr("croc.train.health.ALIKE", 0.01)
    pretrain(tiny_config(tmp_path / "run", report=False, stop_after_steps=6), "tiny")
    assert capsys.readouterr().err.count("the image level has become uniform") == 1
