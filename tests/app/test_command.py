"""`croc app`: what can be opened, what is refused in one line, and how it ends."""

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
from tests.test_cli import refused
from tests.tiny import tiny_config, tiny_dino


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the checkpoints of steps 2 and 3."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=3), "tiny")


def test_runs_weights_and_checkpoints_are_opened(run: Path, tmp_path: Path) -> None:
    dino = pretrain(tiny_dino(tmp_path / "dino", stop_after_steps=1), "tiny-dino")
    file = tmp_path / "kept.safetensors"
    export(Export(str(run), to=str(file)))

    def names(*runs: Path, weights: tuple[str, ...] = (), steps: tuple[int, ...] = ()) -> list[str]:
        return [model.name for model in open_models(tuple(map(str, runs)), weights, steps)]

    assert names(run) == ["tiny@3"]
    assert names(run, dino) == ["tiny@3", "dino@1"]
    assert names(run, steps=(2,)) == ["tiny@2", "tiny@3"]
    assert names(run, steps=(3, 2)) == ["tiny@3", "tiny@2"]
    assert names(run, weights=(str(file),)) == ["tiny@3", "kept"]
    assert names(weights=("random:vit_tiny_patch16_224",)) == ["vit_tiny_patch16_224, untrained"]


def test_a_model_knows_its_setting(run: Path, tmp_path: Path) -> None:
    dino = pretrain(tiny_dino(tmp_path / "dino", stop_after_steps=1), "tiny-dino")
    own, other = open_models((str(run), str(dino)), (), ())
    assert (own.view_px, own.grid, own.cluster.k_start) == (32, 4, 5)
    assert own.heads("values") == 3
    assert own.heads("last") == 1
    assert other.cluster == ClusterConfig()
    assert not any(weight.requires_grad for weight in own.backbone.parameters())


BAD = [
    ([], "say what to explore"),
    (["no/such/run"], "holds no run"),
    (["RUN", "RUN", "RUN"], "two can be compared"),
    (["RUN", "--checkpoint", "7"], "it has 2, 3"),
    (["RUN", "RUN", "--checkpoint", "2"], "--checkpoint is for one RUN"),
    (["--weights", "nothing"], "give a file of croc export"),
    (["--weights", "random:nothing"], "timm has no model"),
    (["--weights", "random:resnet50"], "is no plain ViT"),
    (["RUN", "--port", "70000"], "--port must be in"),
    (["RUN", "--port", "x"], "--port"),
    (["RUN", "--host", "0.0.0.0"], "--host"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line(
    arguments: list[str], expected: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run) if word == "RUN" else word for word in arguments]
    port = [] if "--port" in given else ["--port", "0"]
    assert expected in refused(capsys, "app", *given, *port)


def test_a_port_in_use_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"port {port} is in use" in refused(capsys, "app", str(run), "--port", port)


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "pip install 'croc[app]'" in refused(capsys, "app", "anything")


def test_help_and_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "croc app RUN" in capsys.readouterr().out


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
