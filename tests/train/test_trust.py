"""Nothing in a file is ever run: a hostile pickle is laid wherever a command reads one."""

import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints
from tests.eval.commands import segmentation_tree
from tests.eval.trees import photograph
from tests.tiny import FLAGS, tiny_config


class Hostile:
    """Unpickled without care it runs a command that leaves a file."""

    def __init__(self, left: Path) -> None:
        self.left = left

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.left}",)


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What it leaves; that a careless reader does leave it is seen first."""
    left = tmp_path / "ran"
    pickle.loads(pickle.dumps(Hostile(left)))
    assert left.exists()
    left.unlink()
    return left


def as_zip(path: Path, left: Path) -> None:
    torch.save({"format": 2, "modules": {"teacher": Hostile(left)}}, path)


def as_old_torch(path: Path, left: Path) -> None:
    torch.save({"model": Hostile(left)}, path, _use_new_zipfile_serialization=False)


def as_pickle(path: Path, left: Path) -> None:
    path.write_bytes(pickle.dumps(Hostile(left)))


def as_numpy(path: Path, left: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([Hostile(left)], dtype=object), allow_pickle=True)


Save = Callable[[Path, Path], None]
EVERY_SAVE = pytest.mark.parametrize("save", [as_zip, as_old_torch, as_pickle, as_numpy])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return pretrain(tiny_config(folder, stop_after_steps=2, report=False), "demo")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def refused(arguments: Sequence[str], left: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """One line on stderr, exit code 2, and nothing was run."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr().err.strip()
    assert not left.exists()
    assert code == 2, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


@EVERY_SAVE
def test_checkpoints_of_a_run(
    save: Save, run: Path, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Training, pictures, explorer, export, evaluation, table."""
    save(checkpoints(run)[-1], left)
    data = segmentation_tree(tmp_path / "data")
    for command in (
        ("pretrain", "demo", *FLAGS, "--run.folder", run),
        ("show", "clusters", "--run", run, "--to", tmp_path / "a.png"),
        ("show", "features", "--run", run, "--to", tmp_path / "a.png"),
        ("app", run, "--port", "0"),
        ("export", run, "--to", tmp_path / "a.safetensors"),
        ("show", "weights", checkpoints(run)[-1]),
        ("evaluate", "kmeans", "--weights", run, "--data", data, "--to", tmp_path / "r.jsonl"),
        ("evaluate", "table", "--weights", run, "--data", data, "--to", tmp_path / "t"),
    ):
        refused(command, left, capsys)


@EVERY_SAVE
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_weights(
    save: Save, name: str, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / name
    save(path, left)
    data = segmentation_tree(tmp_path / "data")
    for command in (
        ("show", "weights", path),
        ("show", "clusters", "--weights", path, "--to", tmp_path / "a.png"),
        ("pretrain", "demo", *FLAGS, "--init", path, "--run.folder", tmp_path / "new"),
        ("evaluate", "linear", "--weights", path, "--data", data, "--to", tmp_path / "r.jsonl"),
    ):
        refused(command, left, capsys)


@EVERY_SAVE
def test_pages_of_settings_and_scores(
    save: Save, run: Path, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    scores = tmp_path / "results.jsonl"
    save(scores, left)
    to = tmp_path / "a.safetensors"
    refused(("export", run, "--to", to, "--scores", scores), left, capsys)
    save(run / "config.json", left)
    for command in (
        ("pretrain", run / "config.json"),
        ("pretrain", "demo", *FLAGS, "--run.folder", run),
        ("show", "clusters", "--run", run, "--to", tmp_path / "a.png"),
        ("show", "report", run, "--to", tmp_path / "a.html"),
    ):
        refused(command, left, capsys)


@EVERY_SAVE
def test_photographs_and_labels(
    save: Save, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In a folder, in a shard, in a packed folder, in a data set of an evaluation."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(photograph(number, size=(48, 40)))
    packed = tmp_path / "packed"
    assert main(["data", "pack", str(folder), "--to", str(packed), "--workers", "1"]) == 0
    save(packed / "index.npy", left)
    save(folder / "bad.jpg", left)
    for suffix in ("pkl", "pickle", "pyd", "pth", "npy", "npz", "ten", "cls", "json"):
        save(folder / f"0.{suffix}", left)  # WebDataset decoders would unpickle some
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        tar.add(folder, arcname="photographs")
    for source in (folder, shard, packed):
        to = tmp_path / f"run-{source.name}"
        train = ("pretrain", "demo", *FLAGS, "--data.root", source, "--run.folder", to)
        refused((*train, "--data.workers", "0", "--run.no-report"), left, capsys)
    data = tmp_path / "data"
    data_set = segmentation_tree(data)
    for spoiled in ("images/val/0.jpg", "labels/val/1.png", "classes.txt"):
        saved = (data / spoiled).read_bytes()
        save(data / spoiled, left)
        ask = ("evaluate", "kmeans", "--weights", "random:vit_tiny_patch16_224")
        refused((*ask, "--data", data_set, "--to", tmp_path / "r.jsonl"), left, capsys)
        (data / spoiled).write_bytes(saved)


def test_a_picture_to_be_shown(
    left: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    picture = tmp_path / "a.jpg"
    as_pickle(picture, left)
    refused(("show", "clusters", picture, "--run", run, "--to", tmp_path / "a.png"), left, capsys)
    Image.new("RGB", (64, 64)).save(tmp_path / "b.jpg")
    assert main(["show", "clusters", str(tmp_path / "b.jpg"), "--run", str(run)]) == 0
