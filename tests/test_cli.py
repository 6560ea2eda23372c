"""The command line: bad input is one line and exit code 2, nothing is overwritten."""

import json
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.config import PAGE, read_config, write_config
from croc.recipes import RECIPES
from croc.weights.checkpoint import load_checkpoint
from tests.tiny import FLAGS, tiny_config


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(8):
        Image.new("RGB", (50, 40), (30 * number, 90, 60)).save(folder / f"{number}.png")
    return folder


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail with exit code 2; its one line."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("croc: ")
    assert output.err.count("\n") == 1
    return output.err


BAD = [
    (["fly"], "there is no command 'fly'"),
    (["pretrain", "coco"], "there is no recipe 'coco'; there are: coco-vits16"),
    (["pretrain", "missing/config.json"], "there is no configuration missing"),
    (["pretrain", "coco-vits16"], "--data.root"),
    (["pretrain", "coco-vits16", "--data.root", "no/such/folder"], "no/such/folder"),
    (["pretrain", "demo", "--cluster.kstart", "5"], "perhaps you meant --cluster.k-start"),
    (["pretrain", "demo", "--cluster.k-start", "five"], "--cluster.k-start"),
    (["pretrain", "demo", "--cluster.variant", "both"], "'paper', 'released'"),
    (["pretrain", "demo", "--cluster.k-start", "1"], "at least 2"),
    (["pretrain", "demo", "--cluster.k-start", "73"], "more than the 72 tokens"),
    (["pretrain", "demo", "--cluster.k-max", "9"], "--cluster.k-max must be in 2"),
    (["pretrain", "demo", "--model.patch-px", "7"], "--views.size-px 49"),
    (["pretrain", "demo", "--model.name", "vit_smal_patch16_224"], "did you mean"),
    (["pretrain", "demo", "--optim.batch", "4096"], "--optim.batch 1024"),
    (["pretrain", "demo", "--optim.epochs", "1"], "--optim.warmup-epochs"),
    (["pretrain", "demo", "--views.scale", "0.5", "0.1"], "--views.scale must rise"),
    (["pretrain", "demo", "--run.seed", "-1"], "--run.seed"),
    (["pretrain", "demo", "--run.micro-batch", "8"], "--loss.centring sinkhorn needs"),
    (
        ["pretrain", "demo", "--cluster.variant", "released", "--run.micro-batch", "8"],
        "--cluster.variant released needs --run.micro-batch",
    ),
    (["pretrain", "demo", "--optim.rate", "inf"], "--optim.rate must be finite"),
    (["pretrain", "demo", "--loss.alpha", "nan"], "--loss.alpha must be"),
    (["pretrain", "demo", "--head.image-prototypes", "1"], "at least 2"),
    (["pretrain", "demo", "--run.folder", "/proc/nowhere/run"], "/proc/nowhere"),
    (["pretrain", "demo", "--data.root", "x-{000..00.tar"], "no such shard"),
    (["show", "clusters", "--run", "no/such/run"], "holds no run"),
    (["show", "nothing"], "there is no command 'show nothing'"),
    (["data", "pack", "no/such/folder", "--to", "packed"], "no/such/folder"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    assert expected in refuse(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "empty").mkdir()
    said = refuse(capsys, "pretrain", "coco-vits16", "--data.root", str(tmp_path / "empty"))
    assert "empty" in said
    assert "jpg" in said


def test_other_folders_are_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    said = refuse(capsys, "pretrain", "demo", "--run.folder", str(tmp_path))
    assert "choose another --run.folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_broken_checkpoint_is_named_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(tmp_path / "run")]
    assert main([*run, "--run.stop-after-steps", "2"]) == 0
    capsys.readouterr()
    path = tmp_path / "run" / "checkpoints" / "step-00000002.pt"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a checkpoint at all"):
        path.write_bytes(damaged)
        assert "step-00000002.pt" in refuse(capsys, *run)
        assert path.read_bytes() == damaged
    torch.save({"weights": torch.ones(3)}, path)
    assert "no checkpoint of a CrOC run" in refuse(capsys, *run)
    torch.save({"format": 1}, path)
    assert "has format 1" in refuse(capsys, *run)
    path.write_bytes(whole)
    assert main([*run, "--run.stop-after-steps", "3"]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    run = ["pretrain", "demo", "--run.folder", str(tmp_path / "run")]
    assert "--run.accelerator cuda" in refuse(capsys, *run, "--run.accelerator", "cuda")
    assert "for GPUs" in refuse(capsys, *run, "--run.precision", "bfloat16")
    assert list(tmp_path.iterdir()) == []


def test_config_without_newer_options_gets_their_defaults(tmp_path: Path):
    """Their defaults are what was done then."""
    write_config(tmp_path, tiny_config(), "tiny")
    page = json.loads((tmp_path / PAGE).read_text())
    del page["method"], page["model"]["init"], page["run"]["kernels"], page["optim"]["betas"]
    (tmp_path / PAGE).write_text(json.dumps(page))
    assert read_config(tmp_path / PAGE) == (tiny_config(), "tiny")


@pytest.mark.parametrize(
    ("section", "field", "value", "said"),
    [
        ("views", "scale", [0.5], "views.scale"),
        ("cluster", "tokens", "corners", "cluster.tokens"),
        ("optim", "epochs", 3.5, "optim.epochs"),
        ("data", "root", "scenes", "data.root"),
        ("optim", "speed", 1, "unknown: optim.speed"),
    ],
)
def test_invalid_config_is_named(
    section: str,
    field: str,
    value: object,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    write_config(tmp_path, RECIPES["demo"](), "demo")
    page = json.loads((tmp_path / "config.json").read_text())
    page[section][field] = value
    (tmp_path / "config.json").write_text(json.dumps(page))
    assert said in refuse(capsys, "pretrain", str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_bytes(b"\xff\x00")
    assert "no configuration" in refuse(capsys, "pretrain", str(tmp_path / "config.json"))


def test_diverging_run_stops_and_keeps_finite_checkpoints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(tmp_path / "run")]
    assert main([*run, "--optim.rate", "1e30", "--run.max-skipped", "4"]) == 2
    assert "lower --optim.rate" in capsys.readouterr().err.splitlines()[-1]
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        weights = load_checkpoint(path)["modules"]["teacher"]
        assert all(value.isfinite().all() for value in weights.values())


def test_pickles_in_checkpoints_are_not_executed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(tmp_path / "run")]
    assert main([*run, "--run.stop-after-steps", "1"]) == 0
    capsys.readouterr()
    torch.save({"format": Hostile()}, tmp_path / "run" / "checkpoints" / "step-00000009.pt")
    assert "step-00000009.pt" in refuse(capsys, *run)
    assert not (tmp_path / "owned").exists()


def test_help_on_every_level(capsys: pytest.CaptureFixture[str]):
    for arguments, expected in (
        (["--help"], "croc pretrain RECIPE"),
        (["show", "--help"], "croc show clusters"),
        (["data"], "croc data pack"),
        (["--version"], "croc 0."),
        (["pretrain", "--help"], "imagenet-vits16"),
    ):
        assert main(arguments) == 0
        assert expected in capsys.readouterr().out
    for arguments, expected in (
        (["pretrain", "coco-vits16", "--help"], "--cluster.position-weight"),
        (["demo", "--help"], "--optim.epochs"),
        (["show", "clusters", "--help"], "--run"),
        (["data", "pack", "--help"], "--to"),
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert not end.value.code
        assert expected in capsys.readouterr().out


def test_every_flag_is_explained(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["pretrain", "coco-vits16", "--help"])
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert sum(line.startswith("--") for line in lines) > 50
    for line, following in pairwise(lines):
        if line.startswith("--") and line.strip("-─"):
            assert following, line
            assert not following.startswith(("(", "--", "─")), line


def test_pack_train_and_show(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    packed, run, picture = tmp_path / "packed", tmp_path / "run", tmp_path / "picture.png"
    pack = ["data", "pack", str(photographs), "--to", str(packed), "--canvas-px", "40"]
    assert main([*pack, "--workers", "0"]) == 0
    train = ["pretrain", "demo", *FLAGS, "--run.folder", str(run), "--run.stop-after-steps", "1"]
    assert main([*train, "--data.root", str(packed)]) == 0
    show = ["show", "clusters", str(photographs / "3.png"), "--run", str(run)]
    assert main([*show, "--to", str(picture)]) == 0
    with Image.open(picture) as image:
        assert min(image.size) > 100
    capsys.readouterr()
    assert "give it an ending" in refuse(capsys, *show, "--to", str(tmp_path / "picture"))
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    assert "broken.jpg" in refuse(
        capsys, "show", "clusters", str(tmp_path / "broken.jpg"), "--run", str(run)
    )


def test_training_from_shards_by_a_brace_pattern(photographs: Path, tmp_path: Path):
    """Two shards of photographs by a brace pattern."""
    for number in range(2):
        with tarfile.open(tmp_path / f"shard-{number}.tar", "w") as shard:
            for path in photographs.iterdir():
                shard.add(path, f"{number}-{path.name}")
    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(tmp_path / "run")]
    root = ["--data.root", str(tmp_path / "shard-{0..1}.tar")]
    assert main([*run, *root, "--run.stop-after-steps", "2"]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_too_many_broken_files_stop_the_run(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (photographs / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    run = ["pretrain", "demo", *FLAGS, "--data.root", str(photographs)]
    assert main([*run, "--run.folder", str(tmp_path / "run")]) == 2
    assert "broken.jpg" in capsys.readouterr().err.splitlines()[-1]
    lenient = ["--data.max-failed-share", "0.2", "--run.folder", str(tmp_path / "lenient")]
    assert main([*run, *lenient]) == 0
    said = capsys.readouterr().err
    assert said.count("skipped, cannot be decoded") == 1


def test_config_json_repeats_or_resumes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, again = tmp_path / "first", tmp_path / "again"
    stop = ["--run.stop-after-steps", "2"]
    assert main(["pretrain", "demo", *FLAGS, "--run.folder", str(first), *stop]) == 0
    assert main(["pretrain", str(first / "config.json"), "--run.folder", str(again), *stop]) == 0
    lines = [
        [json.loads(line)["loss"] for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (first, again)
    ]
    assert lines[0] == lines[1]
    capsys.readouterr()
    moved = first.rename(tmp_path / "moved")
    assert main(["pretrain", str(moved / "config.json")]) == 0
    assert f"{moved}: resumes from step 2, to step 9" in capsys.readouterr().err


def test_recipes_have_the_papers_numbers():
    coco, imagenet = RECIPES["coco-vits16"](), RECIPES["imagenet-vits16"]()
    assert RECIPES["cocoplus-vits16"]().data.subfolders == ("train2017", "unlabeled2017")
    assert (coco.model.name, coco.views.size_px) == ("vit_small_patch16_224", 224)
    assert (coco.head.image_prototypes, coco.head.cluster_prototypes) == (65536, 8192)
    assert (coco.cluster.position_weight, coco.cluster.k_start, coco.cluster.tokens) == (
        4,
        12,
        "values",
    )
    assert (imagenet.cluster.position_weight, imagenet.cluster.k_start) == (3, 12)
    assert (imagenet.cluster.tokens, imagenet.optim.batch) == ("keys", 1024)
    assert (coco.cluster.sharpness, coco.loss.alpha) == (20, 1)
    assert (coco.loss.student_temperature, coco.loss.teacher_temperature) == (0.1, 0.07)
    assert (coco.loss.teacher_temperature_start, coco.loss.temperature_warmup_epochs) == (0.04, 30)
    assert (coco.optim.weight_decay, coco.optim.weight_decay_end) == (0.04, 0.4)
    assert (coco.optim.rate, coco.optim.rate_end, coco.optim.warmup_epochs) == (5e-4, 1e-5, 10)
    assert (coco.optim.batch, coco.optim.epochs, coco.optim.clip_gradient) == (256, 300, 0)
    assert (coco.loss.teacher_momentum, coco.loss.frozen_prototype_epochs) == (0.996, 1)
    assert (coco.model.drop_path, coco.views.scale) == (0.1, (0.25, 1.0))
    assert coco.head.unit_prototypes is False


def test_closed_pipe_is_no_error():
    command = f"set -o pipefail; {sys.executable} -m croc evaluate table --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
