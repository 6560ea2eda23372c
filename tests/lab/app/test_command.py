"""`croc app`: what it opens, what it refuses, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from croc.cli import main
from croc.config import ClusterConfig
from croc.lab.app import command
from croc.lab.app.models import open_models
from croc.train.loop import pretrain
from croc.weights.export import Export, export
from tests.tiny import tiny_dino


def test_runs_weights_and_checkpoints_are_opened(run: Path, tmp_path: Path) -> None:
    dino = pretrain(tiny_dino(tmp_path / "dino", stop_after_steps=1), "tiny-dino")
    file = tmp_path / "kept.safetensors"
    export(Export(str(run), to=str(file)))

    def names(*runs: Path, weights: tuple[str, ...] = (), steps: tuple[int, ...] = ()) -> list[str]:
        return [model.name for model in open_models(tuple(map(str, runs)), weights, steps)]

    assert names(run) == ["tiny@3"]
    assert names(run, steps=(2,)) == ["tiny@2", "tiny@3"]
    assert names(run, steps=(3, 2)) == ["tiny@3", "tiny@2"]
    assert names(run, weights=(str(file),)) == ["tiny@3", "kept"]
    assert names(weights=("random:vit_tiny_patch16_224",)) == ["vit_tiny_patch16_224, untrained"]

    own, other = open_models((str(run), str(dino)), (), ())
    assert (own.name, other.name) == ("tiny@3", "dino@1")
    assert (own.view_px, own.grid, own.cluster.k_start) == (32, 4, 5)
    assert (own.heads("values"), own.heads("last")) == (3, 1)
    assert other.cluster == ClusterConfig()
    assert not any(weight.requires_grad for weight in own.backbone.parameters())


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
        assert started.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
        assert url is not None
        with urllib.request.urlopen(url[0] + "/api/start", timeout=20) as answer:
            assert b"tiny@3" in answer.read()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=20)
    finally:
        started.kill()
    assert (started.returncode, out, err) == (0, "", "")


BAD = [
    ([], "name what to explore"),
    (["no/such/run"], "no/such/run is not a run"),
    (["RUN", "RUN", "RUN"], "at most two can be compared"),
    (["RUN", "--checkpoint", "7"], "it has 2, 3"),
    (["RUN", "RUN", "--checkpoint", "2"], "--checkpoint needs exactly one RUN"),
    (["--weights", "nothing"], "--weights nothing"),
    (["--weights", "random:nothing"], "nothing"),
    (["--weights", "random:resnet50"], "resnet50"),
    (["RUN", "--port", "70000"], "--port must be in"),
    (["RUN", "--port", "IN USE"], "address already in use; choose another with --port"),
    (["RUN", "--host", "0.0.0.0"], "--host"),
    (["WITHOUT EXTRA"], "pip install 'croc[app]'"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line(
    arguments: list[str],
    expected: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "WITHOUT EXTRA" in arguments:
        monkeypatch.setattr(command, "find_spec", lambda name: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = {"RUN": str(run), "IN USE": str(other.getsockname()[1])}
        line = [words.get(word, word) for word in arguments]
        assert main(["app", *line, *([] if "--port" in line else ["--port", "0"])]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert expected in output.err
