"""The loop: exact resumes after every kind of end, and processes that equal one process."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from croc.config import CrocConfig, PretrainConfig
from croc.errors import UserError
from croc.method.croc import Croc
from croc.train.checkpoint import checkpoints, load_checkpoint
from croc.train.log import TIMINGS, RunLog, read_metrics
from croc.train.loop import pretrain
from croc.train.run_folder import read_config
from tests.tiny import FLAGS, tiny_config, tiny_dino, tiny_mae

STEPS = 9


def told(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, but for the times."""
    lines = read_metrics(folder)
    return [{name: line[name] for name in line if name not in TIMINGS} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return pretrain(tiny_config(folder), "tiny")


def same_weights(one: Path, other: Path) -> bool:
    states = [load_checkpoint(checkpoints(folder)[-1])["modules"] for folder in (one, other)]
    return all(
        torch.equal(value, states[1][module][name])
        for module in states[0]
        for name, value in states[0][module].items()
    )


def test_a_run_says_all_of_its_health(whole: Path):
    lines = told(whole)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    names = {"loss", "loss_image", "loss_cluster", "entropy_image", "entropy_cluster"}
    names |= {"kl_image", "kl_cluster", "k_mean", "valid_share", "gradient_norm", "rate"}
    names |= {"effective_clusters", "largest_share"}
    for line in lines:
        assert names <= line.keys()
        assert line["loss"] == pytest.approx(line["loss_image"] + line["loss_cluster"])
        assert line["kl_image"] == pytest.approx(
            line["loss_image"] - line["entropy_image"], abs=1e-5
        )
        assert 2 <= line["k_mean"] <= 5
        assert 1 < line["effective_clusters"] < line["k_mean"]
        assert 1 / line["effective_clusters"] < line["largest_share"] < 1
        assert 0 < line["valid_share"] <= 1
        assert line["gradient_norm"] > 0
    assert all("images_per_s" in line for line in read_metrics(whole))
    assert any((whole / "tensorboard").iterdir())
    assert [path.name for path in checkpoints(whole)] == ["step-00000008.pt", "step-00000009.pt"]


@pytest.mark.parametrize("killed_at", range(1, STEPS))
def test_killed_at_any_step_and_resumed_nothing_differs(
    whole: Path, tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    def die(self: RunLog, step: int) -> None:
        if step == killed_at:
            raise Killed

    config = tiny_config(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "advance", die)
        with pytest.raises(Killed):
            pretrain(config, "tiny")
    pretrain(config, "tiny")
    assert told(tmp_path / "run") == told(whole)
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize("tiny", [tiny_dino, tiny_mae])
def test_other_methods_resume_as_exactly(tmp_path: Path, tiny: Callable[..., PretrainConfig]):
    whole = pretrain(tiny(tmp_path / "whole"), "tiny")
    for end in (1, 3, 4, None):
        pretrain(tiny(tmp_path / "run", stop_after_steps=end), "tiny")
    assert len(told(whole)) == STEPS
    assert told(tmp_path / "run") == told(whole)
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("tiny", "metric", "falls_to"), [(tiny_dino, "kl_image", 0.5), (tiny_mae, "loss", 0.97)]
)
def test_other_methods_learn(
    tmp_path: Path, tiny: Callable[..., PretrainConfig], metric: str, falls_to: float
):
    """On scenes; and the page tells the method."""
    config = tiny(tmp_path / "run")
    config = replace(config, optim=replace(config.optim, epochs=10))
    values = [line[metric] for line in told(pretrain(config, "tiny"))]
    assert sum(values[-5:]) < falls_to * sum(values[:5])
    found, _ = read_config(tmp_path / "run" / "config.json")
    assert type(found) is type(config)
    with pytest.raises(UserError, match="holds a run of"):
        pretrain(tiny_config(tmp_path / "run"), "tiny")


def test_stopped_and_continued_nothing_differs(whole: Path, tmp_path: Path):
    for end in (3, 4, None):
        pretrain(tiny_config(tmp_path / "run", stop_after_steps=end), "tiny")
    assert told(tmp_path / "run") == told(whole)
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize(("tiny", "network"), [(tiny_config, "teacher"), (tiny_mae, "student")])
def test_starts_from_the_backbone_of_another_run(
    tmp_path: Path, tiny: Callable[..., PretrainConfig], network: str, capsys: Any
):
    """Which may be gone once the run has a checkpoint of its own."""
    first = pretrain(tiny(tmp_path / "first", stop_after_steps=2), "tiny")
    weights = load_checkpoint(checkpoints(first)[-1])["modules"][network]
    config = tiny_config(tmp_path / "second", seed=5, stop_after_steps=1)
    config = replace(config, model=replace(config.model, init=str(first)))
    config = replace(config, loss=replace(config.loss, teacher_momentum=1.0))
    second = pretrain(config, "tiny")
    assert "starts from first@2" in capsys.readouterr().err
    teacher = load_checkpoint(checkpoints(second)[-1])["modules"]["teacher"]
    for name, value in teacher.items():  # which has not moved, nor has the student at rate 0
        if name.startswith("backbone."):
            assert torch.equal(value, weights[name]), name
    head = "head.image.directions"
    assert head not in weights or not torch.equal(teacher[head], weights[head])
    shutil.rmtree(first)
    pretrain(replace(config, run=replace(config.run, stop_after_steps=2)), "tiny")
    assert len(told(second)) == 2


def test_a_finished_run_is_left_as_it_is(whole: Path, tmp_path: Path):
    before = {path: path.stat().st_mtime_ns for path in checkpoints(whole)}
    lines = read_metrics(whole)
    pretrain(tiny_config(whole), "tiny")
    assert {path: path.stat().st_mtime_ns for path in checkpoints(whole)} == before
    assert read_metrics(whole) == lines


def test_another_seed_gives_another_run(whole: Path, tmp_path: Path):
    pretrain(tiny_config(tmp_path / "run", seed=1, stop_after_steps=1), "tiny")
    assert told(tmp_path / "run")[0]["loss"] != told(whole)[0]["loss"]


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_micro_batches_do_not_change_the_losses(whole: Path, tmp_path: Path, micro_batch: int):
    """The tiny run itself goes by 8 of 8; by 3 an uneven rest is left."""
    pretrain(tiny_config(tmp_path / "run", micro_batch=micro_batch, stop_after_steps=5), "tiny")
    for ours, theirs in zip(told(tmp_path / "run"), told(whole)):
        assert ours == pytest.approx(theirs, rel=2e-4)


def test_a_full_gpu_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr(Croc, "accumulate", fail)
    with pytest.raises(UserError, match=r"try a smaller --run\.micro-batch.*out of memory\)$"):
        pretrain(tiny_config(tmp_path / "run"), "tiny")


def test_released_runs_too(tmp_path: Path):
    config = tiny_config(tmp_path / "run", stop_after_steps=2)
    config = replace(config, cluster=replace(config.cluster, variant="released"))
    pretrain(config, "tiny")
    assert all(line["loss_cluster"] > 0 for line in told(tmp_path / "run"))


def test_prototypes_keep_still_in_the_first_epoch(tmp_path: Path):
    pretrain(tiny_config(tmp_path / "run", checkpoint_every_steps=1, stop_after_steps=3), "tiny")
    first, last = (load_checkpoint(path)["modules"] for path in checkpoints(tmp_path / "run"))
    assert torch.equal(
        first["student"]["head.image.directions"], last["student"]["head.image.directions"]
    )
    assert not torch.equal(
        first["student"]["head.trunk.0.weight"], last["student"]["head.trunk.0.weight"]
    )
    pretrain(tiny_config(tmp_path / "run", checkpoint_every_steps=1, stop_after_steps=4), "tiny")
    moved = load_checkpoint(checkpoints(tmp_path / "run")[-1])["modules"]
    assert not torch.equal(
        moved["student"]["head.image.directions"], last["student"]["head.image.directions"]
    )


def test_kept_checkpoints(tmp_path: Path):
    pretrain(tiny_config(tmp_path / "run", checkpoint_every_steps=1, keep_every_steps=3), "tiny")
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoints(tmp_path / "run")]
    assert steps == [3, 6, 8, 9]


def test_other_settings_are_not_mixed_into_a_run(whole: Path):
    config = tiny_config(whole)
    changed = replace(config, loss=replace(config.loss, alpha=0.5))
    with pytest.raises(UserError, match=r"--loss.alpha was 1.0, now 0.5"):
        pretrain(changed, "tiny")


def on_photographs(config: CrocConfig, folder: Path, count: int, **data: Any) -> CrocConfig:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (50, 40), (7 * number, 90, 60)).save(folder / f"{number:02}.png")
    return replace(config, data=replace(config.data, root=(str(folder),), **data))


def test_workers_and_broken_files_change_nothing_in_a_resume(tmp_path: Path):
    config = tiny_config(tmp_path / "whole")
    config = on_photographs(config, tmp_path / "data", 24, workers=2, max_failed_share=0.5)
    (tmp_path / "data" / "05.png").write_bytes(b"broken")
    pretrain(config, "tiny")
    for end in (4, None):
        run = replace(config.run, folder=str(tmp_path / "run"), stop_after_steps=end)
        pretrain(replace(config, run=run), "tiny")
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    states = [load_checkpoint(checkpoints(tmp_path / f)[-1]) for f in ("run", "whole")]
    assert states[0]["failed"] == states[1]["failed"] == [str(tmp_path / "data" / "05.png")]


def test_other_data_are_not_mixed_into_a_run(tmp_path: Path):
    config = tiny_config(tmp_path / "run", stop_after_steps=1)
    config = on_photographs(config, tmp_path / "data", 9)
    pretrain(config, "tiny")
    (tmp_path / "data" / "00.png").unlink()
    with pytest.raises(UserError, match=r"trained on 9 images, --data.root now has 8"):
        pretrain(config, "tiny")


def command(folder: Path, *more: str) -> list[str]:
    return ["-m", "croc", "pretrain", "demo", *FLAGS, "--run.folder", str(folder), *more]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    path = folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
)
def test_signals(tmp_path: Path, number: signal.Signals, code: int):
    """All but SIGKILL save and end soon; after SIGKILL the last checkpoint goes on."""
    long = ["--optim.epochs", "60"]
    start = [sys.executable, *command(tmp_path / "run", *long)]
    process = subprocess.Popen(
        start, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for_lines(tmp_path / "run", 4, process)
    process.send_signal(number)
    asked = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - asked < 30
    assert process.returncode == code, said
    lines = told(tmp_path / "run")
    saved = load_checkpoint(checkpoints(tmp_path / "run")[-1])["step"]
    if number != signal.SIGKILL:
        assert saved == lines[-1]["step"] < 180
        assert "asked to end" in said
    more = ["--run.stop-after-steps", str(saved + 4)]
    subprocess.run([*start, *more], env=environment(), check=True, capture_output=True)
    again = ["--run.stop-after-steps", str(saved + 4)]
    undisturbed = [sys.executable, *command(tmp_path / "other", *long, *again)]
    subprocess.run(undisturbed, env=environment(), check=True, capture_output=True)
    assert told(tmp_path / "run") == told(tmp_path / "other")


@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_two_processes_give_the_losses_of_one(tmp_path: Path, centring: str):
    """What is random follows the sample, and denominators are those of all processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    for processes in ("1", "2"):
        run = command(tmp_path / processes, "--loss.centring", centring)
        start = [sys.executable, *launch, processes, *run]
        done = subprocess.run(start, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = told(tmp_path / "1"), told(tmp_path / "2")
    assert len(one) == len(two) == STEPS
    for ours, theirs in zip(one, two):
        assert ours == pytest.approx(theirs, rel=2e-4)
    assert one[0]["loss"] == pytest.approx(two[0]["loss"], rel=1e-6)


def test_the_program_starts_its_own_processes(tmp_path: Path):
    start = [sys.executable, *command(tmp_path / "run", "--run.devices", "2")]
    more = ["--run.stop-after-steps", "2"]
    done = subprocess.run([*start, *more], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the run is in") == 1
    assert "2 × cpu" in done.stderr
    assert len(told(tmp_path / "run")) == 2
    odd = ["--optim.batch", "7", "--run.folder", str(tmp_path / "odd")]
    done = subprocess.run([*start, *odd], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("croc: a batch of 7 cannot be shared by 2 processes")
    assert not (tmp_path / "odd").exists()
