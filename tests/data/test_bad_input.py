"""Mistakes in --data.root and `croc data pack`: one line that says how to fix them, exit code 2."""

import os
from pathlib import Path

import pytest

from croc.cli import main

from .pictures import encode, noise, write, write_tar


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(Path("photos/a.png"), encode(noise(4, 4)))
    write(Path("coco/train2017/a.png"), encode(noise(4, 4)))
    write(Path("broken/a.png"), b"not an image")
    write(Path("x.zip"), b"")
    write(Path("x.tar.gz"), b"\x1f\x8b")
    write(Path("empty.tar"), b"")
    write(Path("text.tar"), b"not a tar" * 500)
    write(Path("file"), b"mine")
    write(Path("future/pack.json"), b'{"format": 2, "canvas_px": 4, "count": 0}')
    write(Path("future/index.npy"), b"")
    write(Path("damaged/pack.json"), b"{")
    Path("nothing").mkdir()
    Path("shards").mkdir()
    write_tar(Path("shards/x-000.tar"), {"a.txt": b"a"})
    os.mkfifo("pipe.tar")
    return tmp_path


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ([], "no photographs given: pass --data.root FOLDER"),
        (["nowhere"], "nowhere does not exist"),
        (["x.zip"], "x.zip is neither a folder nor a .tar shard"),
        (["nothing"], "no images in nothing (searched at any depth for jpg jpeg png"),
        (["shards"], "to read its shards pass --data.root shards/*.tar"),
        (["coco", "--data.subfolders", "train2017", "unlabeled2017"], "coco/unlabeled2017"),
        (["x.tar.gz"], "if it is compressed, pass 'pipe:gzip -dc x.tar.gz'"),
        (["empty.tar"], "empty.tar is not a readable tar archive"),
        (["text.tar"], "text.tar is not a readable tar archive"),
        (["shards/x-000.tar"], "no images in shards/x-000.tar"),
        (["shards/x-{000..001}.tar"], "no such shard: shards/x-001.tar"),
        (["shards/x-{000..001.tar"], "no such shard: shards/x-{000..001.tar"),
        (["pipe.tar"], "no such shard: pipe.tar"),
        (["pipe:cat no/such.tar"], "pipe:cat no/such.tar failed with exit code 1"),
        (["pipe:no-such-command-at-all"], "pipe:no-such-command-at-all failed with exit code 127"),
        (["damaged"], "the pack in damaged is damaged"),
        (["future"], "future is damaged or of another version"),
        (["photos"], "1 images do not fill a batch of 24: pass --optim.batch 1"),
    ],
)
def test_data_root(root, expected, inputs, capsys):
    assert main(["pretrain", "demo", "--data.root", *root]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["photos", "--to", "file"], "exists already"),
        (["photos", "--to", "nothing"], "exists already"),
        (["photos", "--to", "file/packed"], "Not a directory"),
        (["broken", "--to", "packed"], "none of the 1 images can be decoded"),
    ],
)
def test_pack(arguments, expected, inputs, capsys):
    before = sorted(inputs.rglob("*"))
    assert main(["data", "pack", *arguments, "--workers", "0"]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert sorted(inputs.rglob("*")) == before
    assert Path("file").read_bytes() == b"mine"
