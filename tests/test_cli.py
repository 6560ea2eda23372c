"""The command line: runs from start to end, damaged checkpoints, help."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from croc import cli
from croc.cli import main
from croc.config import CONFIG_FILE
from croc.io import read_metrics
from tests.refusals import check_refusal
from tests.tiny import FLAGS

Output = pytest.CaptureFixture[str]


def test_broken_checkpoint_is_named_and_kept(capsys: Output, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ["pretrain", "demo", *FLAGS, "--run.folder", "run", "--run.no-report"]
    assert main([*run, "--run.stop-after-steps", "2"]) == 0
    path = Path("run/checkpoints/step-00000002.pt")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a checkpoint at all"):
        path.write_bytes(damaged)
        check_refusal(capsys, run, "step-00000002.pt")
    torch.save({"weights": torch.ones(3)}, path)
    check_refusal(capsys, run, "not a checkpoint of a CrOC run")
    torch.save({"format": 1}, path)
    check_refusal(capsys, run, "has format 1")


def test_help_and_version(capsys: Output):
    for command, expected in (("--help", "croc pretrain RECIPE"), ("--version", "croc 0.")):
        assert not main(command.split())
        assert expected in capsys.readouterr().out


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(8):
        Image.new("RGB", (50, 40), (30 * number, 90, 60)).save(folder / f"{number}.png")
    return folder


def test_pack_train_and_show(photographs: Path, tmp_path: Path, capsys: Output):
    """Then train on two shards, by a brace pattern."""
    packed, run, picture = tmp_path / "packed", tmp_path / "run", tmp_path / "picture.png"
    pack = ["data", "pack", str(photographs), "--to", str(packed), "--max-side-px", "40"]
    assert main([*pack, "--workers", "0"]) == 0
    train = ["pretrain", "demo", *FLAGS, "--run.no-report", "--run.stop-after-steps", "1"]
    assert main([*train, "--run.folder", str(run), "--data.root", str(packed)]) == 0
    show = ["show", "clusters", str(photographs / "3.png"), "--run", str(run)]
    assert main([*show, "--to", str(picture)]) == 0
    with Image.open(picture) as image:
        assert min(image.size) > 100
    capsys.readouterr()
    for number in range(2):
        with tarfile.open(tmp_path / f"shard-{number}.tar", "w") as shard:
            for path in photographs.iterdir():
                shard.add(path, f"{number}-{path.name}")
    root = str(tmp_path / "shard-{0..1}.tar")
    assert main([*train, "--run.folder", str(tmp_path / "other"), "--data.root", root]) == 0


def test_too_many_broken_files_stop_the_run(photographs: Path, tmp_path: Path, capsys: Output):
    for number in range(4):
        (photographs / f"broken-{number}.jpg").write_bytes(b"\xff\xd8\xff")
    run = ["pretrain", "demo", *FLAGS, "--data.root", str(photographs), "--run.no-report"]
    assert main([*run, "--run.folder", str(tmp_path / "run")]) == 2
    assert "broken-3.jpg" in capsys.readouterr().err.splitlines()[-1]
    (photographs / "broken-3.jpg").unlink()  # a few are always tolerated
    assert main([*run, "--run.folder", str(tmp_path / "lenient")]) == 0
    assert capsys.readouterr().err.count("cannot be decoded, replaced by") == 3


def test_config_json_repeats_or_resumes_a_run(tmp_path: Path, capsys: Output):
    first, again = tmp_path / "first", tmp_path / "again"
    stop = ["--run.no-report", "--run.stop-after-steps", "2"]
    assert main(["pretrain", "demo", *FLAGS, "--run.folder", str(first), *stop]) == 0
    assert main(["pretrain", str(first / CONFIG_FILE), "--run.folder", str(again), *stop]) == 0
    losses = [[line["loss"] for line in read_metrics(run)] for run in (first, again)]
    assert losses[0] == losses[1]
    capsys.readouterr()
    moved = first.rename(tmp_path / "moved")
    assert main(["pretrain", str(moved / CONFIG_FILE), "--run.stop-after-steps", "3"]) == 0
    assert f"{moved}: resumes from step 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "error", "advice"),
    [
        ("segment predict", torch.OutOfMemoryError("CUDA"), "or lower --batch"),
        ("evaluate linear", torch.OutOfMemoryError("CUDA"), "or lower the batch size (--linear.b"),
        ("segment predict", RuntimeError("DataLoader worker"), "lower --workers; the same command"),
        ("evaluate linear", RuntimeError("DataLoader worker"), "lower --workers"),
        ("pretrain demo", RuntimeError("DataLoader worker"), "lower --data.workers or"),
    ],
)
def test_lack_of_memory_is_one_line(
    command: str, error: Exception, advice: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert main(command.split()) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line


def test_closed_pipe_is_no_error():
    command = f"set -o pipefail; {sys.executable} -m croc evaluate table --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
