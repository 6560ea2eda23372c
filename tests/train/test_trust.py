"""Nothing in a file is ever run: a hostile pickle is put wherever a command reads a file."""

import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from croc.cli import main
from croc.train.loop import pretrain
from tests.eval.commands import segmentation_tree
from tests.eval.trees import photograph
from tests.tiny import FLAGS, tiny_config


class Hostile:
    """Unpickled without care it runs a command that leaves a file."""

    def __init__(self, left: Path) -> None:
        self.left = left

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.left}",)


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
TRAIN = ("pretrain", "demo", *FLAGS, "--run.no-report")
SPOILED = {  # files, and the commands that read them
    "run/checkpoints/step-00000002.pt": [
        (*TRAIN, "--run.folder", "run"),
        ("show", "clusters", "--run", "run", "--to", "a.png"),
        ("export", "run", "--to", "a.safetensors"),
        ("show", "weights", "run/checkpoints/step-00000002.pt"),
        ("evaluate", "kmeans", "--weights", "run", "--data", "folder:data", "--to", "r.jsonl"),
    ],
    **{
        name: [
            ("show", "weights", name),
            (*TRAIN, "--init", name, "--run.folder", "new"),
            ("evaluate", "linear", "--weights", name, "--data", "folder:data", "--to", "r.jsonl"),
        ]
        for name in ("w.pth", "w.safetensors")
    },
    "results.jsonl": [("export", "run", "--to", "a.safetensors", "--scores", "results.jsonl")],
    "run/config.json": [
        ("pretrain", "run/config.json"),
        (*TRAIN, "--run.folder", "run"),
        ("show", "clusters", "--run", "run", "--to", "a.png"),
        ("show", "report", "run", "--to", "a.html"),
    ],
    "a.jpg": [("show", "clusters", "a.jpg", "--run", "run", "--to", "a.png")],
    **{
        f"data/{name}": [
            ("evaluate", "kmeans", "--weights", "run", "--data", "folder:data", "--to", "r.jsonl")
        ]
        for name in ("images/val/0.jpg", "labels/val/1.png", "classes.txt")
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    pretrain(tiny_config(folder / "run", stop_after_steps=2, report=False), "demo")
    segmentation_tree(folder / "data")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command: tuple[Any, ...], left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 without a traceback, and nothing was run."""
    capsys.readouterr()
    code = main([str(word) for word in command])
    errors = capsys.readouterr().err
    assert not left.exists()
    assert code == 2, errors
    assert "Traceback" not in errors


def test_a_careless_reader_would_run_it(tmp_path: Path):
    pickle.loads(pickle.dumps(Hostile(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


WEIGHTS = ("run/checkpoints/step-00000002.pt", "w.pth", "w.safetensors")
CASES = [(name, save) for name in WEIGHTS for save in (as_zip, as_old_torch, as_pickle, as_numpy)]
CASES += [(name, as_pickle) for name in SPOILED if name not in WEIGHTS]


@pytest.mark.parametrize(("name", "save"), CASES)
def test_files_that_commands_read(name: str, save: Save, folder: Path, capsys):
    save(folder / name, folder / "ran")
    for command in SPOILED[name]:
        refused(command, folder / "ran", capsys)


def test_photographs_in_folders_shards_and_packs(tmp_path: Path, capsys):
    folder, packed, left = tmp_path / "photographs", tmp_path / "packed", tmp_path / "ran"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(photograph(number, size=(48, 40)))
    assert main(["data", "pack", str(folder), "--to", str(packed), "--workers", "1"]) == 0
    as_numpy(packed / "index.npy", left)
    as_pickle(folder / "bad.jpg", left)
    for suffix in ("pkl", "pickle", "pyd", "pth", "npy", "npz", "ten", "cls", "json"):
        as_pickle(folder / f"0.{suffix}", left)  # WebDataset decoders would unpickle some
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        tar.add(folder, arcname="photographs")
    for source in (folder, shard, packed):
        to = tmp_path / f"run-{source.name}"
        refused((*TRAIN, "--data.root", source, "--run.folder", to), left, capsys)
