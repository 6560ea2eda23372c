"""Damage to the numbers of a run: what is skipped, counted, said, and what stays whole."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from croc.config import CrocConfig
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.method.distributed import local_shard
from croc.method.losses import Center
from croc.method.optim import Guard
from croc.train.health import DIAGNOSIS, LINES, Health
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoint_path, checkpoints, load_checkpoint
from tests.tiny import tiny_config, tiny_mae

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


@pytest.mark.parametrize("damage", [spoil_one_gradient, overflow_one_gradient, spoil_the_loss])
def test_a_bad_step_changes_nothing_and_is_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    capsys: pytest.CaptureFixture[str],
):
    inject(monkeypatch, damage, at={4, 6})
    folder = pretrain(every_step(tmp_path / "run"), "tiny")
    last = load_checkpoint(checkpoint_path(folder, 9))
    assert [load_checkpoint(path)["skipped"] for path in checkpoints(folder)] == [
        *[0] * 3,
        *[1],
        *[2] * 3,
    ]
    assert all(value.isfinite().all() for value in last["modules"]["student"].values())
    said = capsys.readouterr().err
    assert [said.count(f"{n} steps skipped so far (non-finite gradient)") for n in (1, 2, 3)] == [
        1,
        1,
        0,
    ]
    spoiled = "loss" if damage is spoil_the_loss else "gradient_norm"
    told = [line[spoiled] is None for line in read_metrics(folder)]
    assert told == [step in {4, 6} for step in range(1, 10)]


def left_alone_by_the_fused_optimiser(
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


@pytest.mark.parametrize("damage", [spoil_one_gradient, spoil_the_loss])
def test_the_fused_optimiser_itself_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
):
    """As on a GPU; torch has the fused optimiser for CPUs too."""
    real, begin = torch.optim.AdamW, Guard.__init__

    def begin_asking(self: Guard, *given) -> None:
        begin(self, *given)
        self._skips_on_device = True

    monkeypatch.setattr(Guard, "__init__", begin_asking)
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: real(*a, **k | {"fused": True}))
    left_alone_by_the_fused_optimiser(tmp_path / "run", monkeypatch, damage)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.cuda
@pytest.mark.parametrize("damage", [spoil_one_gradient, overflow_one_gradient, spoil_the_loss])
def test_on_a_gpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage):
    gpu = {"accelerator": "cuda", "devices": 1, "compile": False, "record": False}
    left_alone_by_the_fused_optimiser(tmp_path / "run", monkeypatch, damage, **gpu)


def test_the_count_goes_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inject(monkeypatch, spoil_one_gradient, at={2, 5})
    pretrain(every_step(tmp_path / "run", stop_after_steps=3), "tiny")
    folder = pretrain(every_step(tmp_path / "run"), "tiny")
    assert load_checkpoint(checkpoints(folder)[-1])["skipped"] == 2


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("tiny", [tiny_config])
def test_bad_steps_in_a_row_end_the_run_with_a_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny, strategy: str
):
    inject(monkeypatch, spoil_one_gradient, at=set(range(4, 100)))
    config = tiny(tmp_path / "run", max_skipped=3, strategy=strategy, report=False)
    with pytest.raises(UserError, match="steps 4 to 6 had no finite gradient") as caught:
        pretrain(config, "tiny")
    assert "\n" not in str(caught.value)
    folder = tmp_path / "run"
    page = json.loads((folder / DIAGNOSIS).read_text())
    assert page["skipped_steps"] == [4, 6]
    assert page["not_finite"]["gradients"] == ["backbone.vit.blocks.1.attn.qkv.weight"]
    assert page["not_finite"]["weights"] == []
    assert {step: len(names) for step, names in page["images"].items()} == {
        "4": 8,
        "5": 8,
        "6": 8,
    }
    assert all(name.startswith("scene") for names in page["images"].values() for name in names)
    assert page["metrics"]["gradient_norm"] is None
    assert [path.stem for path in checkpoints(folder)] == ["step-00000002"]


def test_a_teacher_without_numbers_leaves_the_centre():
    center = Center(3, momentum=0.9)
    center.value.copy_(torch.tensor([1.0, 2.0, 3.0]))
    center.update(torch.tensor([math.nan, math.inf, 6.0]), torch.tensor(2.0))
    torch.testing.assert_close(center.value, torch.tensor([1.0, 2.0, 3.0]))


def test_all_pixels_alike_give_numbers(tmp_path: Path):
    """Uniform gray images: all tokens of a view nearly equal, wherever they are."""
    from PIL import Image

    for index in range(24):
        Image.new("RGB", (64, 64), (120, 120, 120)).save(tmp_path / f"{index}.png")
    config = tiny_config(tmp_path / "run", report=False, stop_after_steps=4)
    views = replace(config.views, jitter=0.0, solarise=(0.0, 0.0))
    data = replace(config.data, root=(str(tmp_path),))
    for variant in ("paper", "released"):
        cluster = replace(config.cluster, variant=variant)
        run = replace(config.run, folder=str(tmp_path / variant))
        folder = pretrain(replace(config, data=data, views=views, cluster=cluster, run=run), "tiny")
        lines = read_metrics(folder)
        assert all(math.isfinite(line["loss"]) for line in lines)
        assert load_checkpoint(checkpoints(folder)[-1])["skipped"] == 0


HEALTHY = {
    "entropy_image": 2.0,
    "entropy_cluster": 2.0,
    "k_mean": 3.1,
    "valid_share": 0.6,
    "effective_clusters": 1.4,
}


@pytest.mark.parametrize(
    ("sign", "says"),
    [
        ({"entropy_image": 0.0}, "the image level has collapsed to one prototype"),
        ({"entropy_image": math.log(64)}, "the image level has become uniform"),
        ({"entropy_cluster": 1e-4}, "the cluster level has collapsed to one prototype"),
        ({"entropy_cluster": math.log(32) - 1e-4}, "the cluster level has become uniform"),
        ({"k_mean": 3.0}, "every image gets the same K"),
        ({"valid_share": 0.0}, "no cluster is in both views"),
        ({"effective_clusters": 2.1}, "a higher --cluster.sharpness"),
    ],
)
def test_a_sign_of_collapse_is_said_once(sign: dict[str, float], says: str):
    health = Health(tiny_config())
    said = [health.warnings(HEALTHY | sign) for _ in range(3 * LINES)]
    assert [len(each) for each in said].index(1) == LINES - 1
    assert sum(map(len, said)) == 1
    assert says in said[LINES - 1][0]


def test_a_healthy_run_and_passing_signs_are_left_in_peace():
    health = Health(tiny_config())
    collapsed = HEALTHY | {"entropy_image": 0.0, "valid_share": 0.0}
    for _ in range(5):
        assert all(health.warnings(HEALTHY) == [] for _ in range(LINES))
        assert all(health.warnings(collapsed) == [] for _ in range(LINES - 1))
    assert all(Health(tiny_mae()).warnings({"loss": 0.0}) == [] for _ in range(2 * LINES))


def test_a_run_says_the_signs_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("croc.train.health.LINES", 4)
    monkeypatch.setattr("croc.train.health.ALIKE", 0.01)
    pretrain(tiny_config(tmp_path / "run", report=False), "tiny")
    assert capsys.readouterr().err.count("the image level has become uniform") == 1
