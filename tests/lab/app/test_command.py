"""`croc app`: what it opens, what it refuses, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from croc.cli import main
from croc.lab import app
from croc.train.loop import pretrain
from croc.weights.export import Export, export
from tests.tiny import tiny_dino


def test_runs_and_weights_are_opened(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dino = pretrain(tiny_dino(tmp_path / "dino", stop_after_steps=1), "tiny-dino")
    (file, _) = export(Export(str(run), to=str(tmp_path / "kept.safetensors")))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    for arguments, names in (
        ([str(run), str(dino)], "tiny, step 3 and dino, step 1"),
        (["--weights", str(file), "random:vit_tiny_patch16_224"], "kept and vit_tiny_patch16_224"),
    ):
        assert main(["app", *arguments, "--port", "0"]) == 0
        assert capsys.readouterr().out.startswith(names)


def test_ctrl_c_ends_it_cleanly(run: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "croc", "app", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
        with urllib.request.urlopen(url[0] + "/api/start", timeout=20) as answer:
            assert b"tiny, step 3" in answer.read()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=20)
    finally:
        started.kill()
    assert (started.returncode, out, err) == (0, "", "")


def test_without_a_web_server_one_line_says_what_to_install(run: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(app, "find_spec", lambda name: None)
    assert main(["app", str(run)]) == 2
    assert "pip install 'croc[app]'" in capsys.readouterr().err
