"""Bad input of the commands: one line, exit code 2, and nothing written."""

import re
import shlex
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import check_refusal
from tests.tiny import FLAGS

SWEEP = f"""sweep demo {shlex.join(FLAGS)} --workers 0 --linear.image-px 32 --linear.steps 5
--sweep.to sweep --sweep.data scenes:4 --sweep.protocols linear"""
VARY = "--sweep.vary cluster.position-weight --sweep.values"
LABEL = "app label --weights random:vit_tiny_patch16_224 --port 0"
BAD = [
    ("show clusters photo.png --run run --heads 3", "--heads 3: the network has heads 0 to 2"),
    ("show clusters photo.png --run run --image-px 64", "--image-px needs --whole"),
    ("show clusters photo.png --run run --whole --image-px 8", "more than the 1 tokens"),
    ("show clusters no.jpg --run run", "no.jpg cannot be read as an image: No such file"),
    ("show clusters photo.png", "--run RUN, or --weights NAME"),
    ("show clusters photo.png --run foreign/..", "is not a run folder"),
    (
        "show clusters photo.png --run run --step 1",
        "no checkpoint of step 1, only of 0 (untrained), 2, 3",
    ),
    ("show clusters photo.png --weights x --step 3", "--step needs --run"),
    (
        "show clusters photo.png --weights no-such",
        "pass a run folder, a file written",
    ),
    ("show clusters photo.png --run mae", "was not trained by CrOC"),
    ("show merging photo.png photo.png --run run", "takes one image"),
    ("show features photo.png --run run --patch 60 3", "60, 3 is outside the image"),
    ("show features photo.png --run run --to picture", "pass a file name ending in .png"),
    ("show features photo.png --run run --to no/x.png", "no/x.png"),
    ("show report", "pass at least one run folder"),
    ("show report nothing", "nothing/config.json not found"),
    ("show report foreign", "foreign/config.json is not a CrOC run configuration"),
    ("show report run --to no/page.html", "no/page.html"),
    ("show report run --scores run/metrics.jsonl", "was not written by croc evaluate"),
    ("app run run run", "pass one or two networks"),
    ("app --weights nothing", "--weights nothing"),
    ("app run --port IN-USE", "address already in use; choose another with --port"),
    ("app run --host 0.0.0.0", "--host"),
    (f"{LABEL} empty", "no images in"),
    (f"{LABEL} none", "none does not exist: pass folders or image files"),
    (f"{LABEL} . --image-px 100", "not a multiple of"),
    ("app label . --weights nothing", "--weights nothing: no such run or file"),
    ("bench demo --bench.steps 0", "--bench.steps must be at least 1"),
    ("bench demo --bench.to /proc/nowhere/bench", "/proc/nowhere"),
    ("bench demo --run.devices 2", "one device"),
    ("bench demo --bench.to there", "choose another --bench.to"),
    ("bench dino-demo", "only supports recipes of CrOC"),
    (SWEEP, "pass either --sweep.vary"),
    (f"{SWEEP} --sweep.vary cluster.tokns --sweep.values keys", "meant --cluster.tokens"),
    (
        f"{SWEEP} --sweep.vary run.seed --sweep.values 1",
        "leave out --run.seed",
    ),
    (f"{SWEEP} {VARY} 1 --optim.batch 4096", "--optim.batch 24"),
    (f"{SWEEP} --sweep.settings a", "'NAME=OPTIONS'"),
    (f'{SWEEP} --sweep.settings "a=\'"', "No closing quotation"),
    (f"{SWEEP} --sweep.settings 'K 6=' 'K-6=--loss.alpha 2'", "would share a folder"),
    (f"{SWEEP} --sweep.settings a=@dino", "unknown recipe 'dino'"),
    (f"{SWEEP} {VARY} 1 --sweep.hold-out 2", "--hold-out must be at least 0"),
]


@pytest.fixture(scope="module")
def place(run: Path, mae_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of the steps 2 and 3, one of MAE, a photograph of 60 × 40, a text with
    a photograph's name, a measurement, and the configuration of another project."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(run, place / "run")
    shutil.copytree(mae_run, place / "mae")
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(place / "photo.png")
    (place / "empty").mkdir()
    for name in ("there/bench.json", "foreign/config.json"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text('{"architectures": ["ViTModel"]}')
    return place


@pytest.mark.parametrize(("command", "fragment"), BAD, ids=[fragment for _, fragment in BAD])
def test_bad_input_is_one_line(command: str, fragment: str, place: Path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = re.sub("IN-USE", str(other.getsockname()[1]), command)
        check_refusal(capsys, shlex.split(command), fragment)
