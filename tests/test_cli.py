"""The command line: bad input is one line and exit code 2, nothing is overwritten."""

import json
import shlex
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from croc import cli
from croc.cli import main
from croc.config import CONFIG_FILE, write_config
from croc.io import read_metrics
from croc.recipes import RECIPES
from croc.weights.checkpoint import load_checkpoint
from tests.data.pictures import write, write_tar
from tests.refusals import check_refusal
from tests.tiny import FLAGS

Output = pytest.CaptureFixture[str]


DEMO = {  # options of `croc pretrain demo`, and a fragment of the message
    "--cluster.kstart 5": "perhaps you meant --cluster.k-start",
    "--cluster.variant both": "'paper', 'released'",
    "--cluster.k-start 73": "more than the 72 tokens",
    "--cluster.k-max 9": "--cluster.k-max must be in 2",
    "--cluster.variant released --run.micro-batch 8": "released needs --run.micro-batch",
    "--model.patch-px 7": "--views.size-px 49",
    "--model.name vit_smal_patch16_224": "did you mean vit_small_patch16_224",
    "--model.name resnet50": "not a ViT",
    "--model.name vit_base_patch16_siglip_224": "CLS token",
    "--model.position-window 0.9 0.3": "--model.position-window must be in 0 … 1, the second",
    "--views.early-px 20 --views.early-epochs 1": "is not a whole number of 8 px patches",
    "--views.early-px 16": "--views.early-px and --views.early-epochs belong together",
    "--views.scale 0.5 0.1": "--views.scale must be in 0 … 1, the second",
    "--optim.batch 4096": "--optim.batch 1024",
    "--optim.batch 7 --run.devices 2": "a batch of 7 cannot be shared by 2 processes",
    "--optim.epochs 1": "--optim.warmup-epochs",
    "--optim.matrix-optimizer muon --run.strategy fsdp": "use --run.strategy ddp",
    "--loss.alpha nan": "--loss.alpha must be",
    "--run.cuda-graph True": "--run.cuda-graph True needs a single process",
    "--run.folder /proc/nowhere/run": "/proc/nowhere",
    "--run.folder thesis": "choose another --run.folder",
    "--run.folder thesis --dry-run": "choose another --run.folder",
}
ROOTS = {  # values of --data.root
    "": "no images given: pass --data.root FOLDER",
    "nowhere": "nowhere does not exist",
    "x.zip": "x.zip is neither a folder nor a .tar shard",
    "empty": "no images in empty (searched at any depth for jpg jpeg png",
    "shards": "to read its shards pass --data.root shards/*.tar",
    "coco --data.subfolders train2017 unlabeled2017": "coco/unlabeled2017",
    "x.tar.gz": "if it is compressed, unpack it first (gzip -d x.tar.gz)",
    "text.tar": "text.tar is not a readable tar archive",
    "shards/x-000.tar": "no images in shards/x-000.tar",
    "shards/x-{000..001}.tar": "no such shard: shards/x-001.tar",
    "future": "future is damaged or of another version",
    "thesis": "1 images do not fill a batch of 24: pass --optim.batch 1",
}
BAD = {f"pretrain demo {options}": fragment for options, fragment in DEMO.items()}
BAD |= {f"pretrain demo --data.root {root}": fragment for root, fragment in ROOTS.items()}
BAD |= {
    "fly": "unknown command 'fly'",
    "pretrain coco": "unknown recipe 'coco'; available recipes: coco-vits16",
    "pretrain missing/config.json": "config.json not found",
    "pretrain coco-vits16": "--data.root",
    "pretrain mae-coco-vits16 --data.root scenes --model.position-window 0.3 0.9": "not for MAE",
    "pretrain mae-coco-vits16 --data.root scenes --decoder.mask-ratio 0.999": "patches visible",
    "pretrain binary.json": "not a CrOC run configuration",
    "pretrain views.scale.json": "views.scale",
    "pretrain optim.epochs.json": "optim.epochs",
    "pretrain optim.speed.json": "unknown: optim.speed",
    "data pack no/such/folder --to packed": "no/such/folder",
    "data pack thesis --to binary.json --workers 0": "exists already",
}
if not torch.cuda.is_available():
    BAD |= {
        "pretrain demo --run.accelerator cuda": "--run.accelerator cuda",
        "pretrain demo --run.precision bfloat16": "for GPUs",
    }
INVALID: dict[str, Any] = {"views.scale": [0.5], "optim.epochs": 3.5, "optim.speed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what the table names."""
    folder = tmp_path_factory.mktemp("bad")
    for name in ("empty", "thesis", "shards", "coco/train2017"):
        (folder / name).mkdir(parents=True)
    for name in ("thesis", "coco/train2017"):
        Image.new("RGB", (50, 40)).save(folder / name / "figure.png")
    write_tar(folder / "shards" / "x-000.tar", {"a.txt": b"a"})
    for name, data in {
        "binary.json": b"\xff\x00",
        "x.zip": b"",
        "x.tar.gz": b"\x1f\x8b",
        "text.tar": b"not a tar" * 500,
        "future/pack.json": b'{"format": 2, "canvas_px": 4, "count": 0}',
        "future/index.npy": b"",
    }.items():
        write(folder / name, data)
    for path, value in INVALID.items():
        write_config(folder, RECIPES["demo"](), "demo")
        section, field = path.split(".")
        config = json.loads((folder / CONFIG_FILE).read_text())
        config[section][field] = value
        (folder / f"{path}.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("command", "fragment"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line_and_writes_nothing(
    command: str, fragment: str, folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    check_refusal(capsys, shlex.split(command), fragment)


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


def test_diverging_run_stops_and_keeps_finite_checkpoints(capsys: Output, tmp_path: Path):
    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(tmp_path / "run")]
    assert main([*run, "--optim.lr", "1e30", "--run.max-skipped", "4"]) == 2
    assert "lower --optim.lr" in capsys.readouterr().err.splitlines()[-1]
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        weights = load_checkpoint(path)["modules"]["teacher"]
        assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--help", "croc pretrain RECIPE"),
        ("show --help", "croc show clusters"),
        ("--version", "croc 0."),
        ("pretrain --help", "imagenet-vits16"),
    ],
)
def test_help_on_every_level(command: str, expected: str, capsys: Output):
    try:
        code = main(command.split())
    except SystemExit as end:
        code = end.code
    assert not code
    assert expected in capsys.readouterr().out


def test_every_flag_is_explained(capsys: Output):
    with pytest.raises(SystemExit):
        main(["pretrain", "coco-vits16", "--help"])
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert sum(line.startswith("--") for line in lines) > 50
    for line, following in pairwise(lines):
        if line.startswith("--") and line.strip("-─"):
            assert following, line
            assert not following.startswith(("(", "--", "─")), line


def test_help_wraps_paragraphs_and_shows_defaults(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "1000")
    for command in ("evaluate linear", "show report", "sweep demo"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
    text = " ".join(word for word in capsys.readouterr().out.split() if word != "│")
    assert "RUN ... Run folders; several are compared. (required)" in text
    assert "one setting each; quote values that contain spaces: '0.1 1'. (default: none)" in text
    assert "by default one per CPU core, at most 16. --hold-out" in text
    assert "(default: )" not in text


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
    (photographs / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    run = ["pretrain", "demo", *FLAGS, "--data.root", str(photographs), "--run.no-report"]
    assert main([*run, "--run.folder", str(tmp_path / "run")]) == 2
    assert "broken.jpg" in capsys.readouterr().err.splitlines()[-1]
    lenient = ["--data.max-corrupt-fraction", "0.2", "--run.folder", str(tmp_path / "lenient")]
    assert main([*run, *lenient]) == 0
    assert capsys.readouterr().err.count("cannot be decoded, replaced by") == 1


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
