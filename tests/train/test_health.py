"""Damage to the numbers of a run: what is skipped, counted, said, and what stays whole."""

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
from croc.train.health import LARGE_DRIFT, LINES, Health
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoint_path, checkpoints, load_checkpoint
from tests.tiny import tiny_config

Damage = Callable[[torch.nn.Module, dict[str, torch.Tensor]], None]


def spoil_one_gradient(student: torch.nn.Module, _: dict[str, torch.Tensor]) -> None:
    gradient = student.get_parameter("backbone.vit.blocks.1.attn.qkv.weight").grad
    assert gradient is not None
    local_shard(gradient)[3, 5] = math.nan


def overflow_one_gradient(student: torch.nn.Module, _: dict[str, torch.Tensor]) -> None:
    gradient = student.get_parameter("backbone.vit.norm.bias").grad
    assert gradient is not None
    gradient[0] = math.inf


def spoil_the_loss(_: torch.nn.Module, metrics: dict[str, torch.Tensor]) -> None:
    metrics["loss"] = metrics["loss"] * math.inf


def inject(monkeypatch: pytest.MonkeyPatch, damage: Damage, at: set[int]) -> None:
    """After the gradients of these steps (the first is 1) were computed."""
    real, step = Croc.compute_gradients, 0

    def damaged(self, *given):
        nonlocal step
        step += 1
        metrics = real(self, *given)
        if step in at:
            damage(self.student, metrics)
        return metrics

    monkeypatch.setattr(Croc, "compute_gradients", damaged)


def every_step(folder: Path, **run: object) -> CrocConfig:
    return tiny_config(folder, checkpoint_every_steps=1, keep_every_steps=1, report=False, **run)


@pytest.mark.parametrize("damage", [spoil_one_gradient, spoil_the_loss])
def test_a_bad_step_changes_nothing_and_is_counted(tmp_path, monkeypatch, damage: Damage, capsys):
    """The count continues after a resume."""
    inject(monkeypatch, damage, at={4, 6})
    for end in (5, 7):
        folder = pretrain(every_step(tmp_path / "run", stop_after_steps=end), "tiny")
    states = [load_checkpoint(path) for path in checkpoints(folder)]
    assert [state["skipped"] for state in states] == [0, 0, 0, 1, 2]
    assert all(value.isfinite().all() for value in states[-1]["modules"]["student"].values())
    output = capsys.readouterr().err
    for number, times in ((1, 1), (2, 1), (3, 0)):
        message = f"{number} steps skipped so far (non-finite gradient)"
        assert output.count(message) == times
    spoiled = "loss" if damage is spoil_the_loss else "gradient_norm"
    bad = [line["step"] for line in read_metrics(folder) if line[spoiled] is None]
    assert bad == [4, 6]


def left_alone_by_the_fused_optimizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, **run: object
) -> None:
    # Not the fourth: in it, the first of an epoch, the prototypes get their first memories.
    inject(monkeypatch, damage, at={5})
    folder = pretrain(every_step(folder, stop_after_steps=5, **run), "tiny")
    before, after = (load_checkpoint(checkpoint_path(folder, step)) for step in (4, 5))
    assert (before["skipped"], after["skipped"]) == (0, 1)
    for name, value in before["modules"]["student"].items():
        assert torch.equal(value, after["modules"]["student"][name]), name
    states = (each["optimizer"]["state"].values() for each in (before, after))
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_fused_optimizer_itself_leaves_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a GPU; torch has the fused optimizer for CPUs too."""
    real, begin = torch.optim.AdamW, Guard.__init__

    def begin_asking(self: Guard, *given) -> None:
        begin(self, *given)
        self._skips_on_device = True

    monkeypatch.setattr(Guard, "__init__", begin_asking)
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: real(*a, **k | {"fused": True}))
    left_alone_by_the_fused_optimizer(tmp_path / "run", monkeypatch, spoil_one_gradient)


@pytest.mark.cuda
@pytest.mark.parametrize("damage", [spoil_one_gradient, overflow_one_gradient, spoil_the_loss])
def test_on_a_gpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage):
    gpu = {"accelerator": "cuda", "devices": 1, "compile": False, "cuda_graph": False}
    left_alone_by_the_fused_optimizer(tmp_path / "run", monkeypatch, damage, **gpu)


@pytest.mark.usefixtures("own_environment")
def test_bad_steps_in_a_row_end_the_run(tmp_path: Path, monkeypatch):
    inject(monkeypatch, spoil_one_gradient, at=set(range(4, 100)))
    config = tiny_config(tmp_path / "run", max_skipped=3, strategy="fsdp", report=False)
    with pytest.raises(UserError, match="steps 4 to 6 had no finite gradient") as caught:
        pretrain(config, "tiny")
    text = str(caught.value)
    assert "in the last one: gradient_norm); the last checkpoint is step-00000002.pt" in text
    assert "\n" not in text
    assert [path.stem for path in checkpoints(tmp_path / "run")] == ["step-00000002"]


HEALTHY = {"entropy_image": 2.0, "entropy_cluster": 2.0, "k_mean": 3.1, "valid_share": 0.6}
HEALTHY |= {"effective_clusters": 1.4}


@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("entropy_image", 0.0, "the image level has collapsed to one prototype"),
        ("entropy_image", math.log(64), "the image level has become uniform"),
        ("entropy_cluster", 1e-4, "the cluster level has collapsed to one prototype"),
        ("k_mean", 3.0, "every image gets the same K"),
        ("valid_share", 0.0, "no cluster is in both views"),
        ("effective_clusters", 2.1, "a higher --cluster.sharpness"),
    ],
)
def test_a_lasting_sign_of_collapse_is_reported_once(metric: str, value: float, message: str):
    health, sign = Health(tiny_config()), HEALTHY | {metric: value}
    for _ in range(3):
        assert all(health.warnings(sign) == [] for _ in range(LINES - 1))
        assert health.warnings(HEALTHY) == []
    warnings = [health.warnings(sign) for _ in range(3 * LINES)]
    assert [len(each) for each in warnings].index(1) == LINES - 1
    assert sum(map(len, warnings)) == 1
    assert message in warnings[LINES - 1][0]


def test_a_run_says_the_signs_it_sees(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("croc.train.health.LINES", 4)
    monkeypatch.setattr("croc.train.health.ALIKE", 0.01)
    pretrain(tiny_config(tmp_path / "run", report=False, stop_after_steps=6), "tiny")
    assert capsys.readouterr().err.count("the image level has become uniform") == 1


def test_large_drift_is_reported_once():
    health = Health(tiny_config())
    assert health.gauge_warning({"rank": 3.0}) is None
    assert health.gauge_warning({"drift": LARGE_DRIFT}) is None
    assert "try a higher --anchor.weight" in (health.gauge_warning({"drift": 0.4}) or "")
    assert health.gauge_warning({"drift": 0.5}) is None
