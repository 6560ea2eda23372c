"""Weights by name, wherever weights are named; and files that say impossible things."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import croc
from croc.cli import main
from croc.config import ModelConfig
from croc.errors import UserError
from croc.eval.features import DenseBackbone, fingerprint, open_backbone
from croc.eval.results import read_results
from croc.eval.table.weights import find_training
from croc.method.backbone import Backbone
from croc.train.loop import pretrain
from croc.weights import shipped
from croc.weights.describe import describe_file
from croc.weights.export import Export, export
from croc.weights.files import read_metadata
from croc.weights.start import load_into
from tests.evals.commands import call
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=2), "tiny")


@pytest.fixture
def folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two weights that ship: small-a and small-b, the same."""
    found = tmp_path / "weights"
    monkeypatch.setattr(shipped, "folders", lambda: [found, tmp_path / "nowhere"])
    for name in ("small-a", "small-b"):
        export(Export(str(run), str(found / f"{name}.safetensors")))
    return found


def test_import_croc_is_light():
    code = "import sys, croc; assert not {'torch', 'timm', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        croc.nosuch  # noqa: B018


def test_load_backbone(run: Path, folder: Path):
    backbone = croc.load_backbone("small-a")
    assert isinstance(backbone, DenseBackbone)
    assert not any(module.training for module in backbone.modules())
    assert {value.dtype for value in backbone.parameters()} == {torch.float32}
    assert backbone.features(torch.rand(1, 3, 32, 48)).shape == (1, 192, 4, 6)
    for what in (str(folder / "small-a.safetensors"), "small-b"):
        assert fingerprint(croc.load_backbone(what)) == fingerprint(backbone)
    assert fingerprint(croc.load_backbone(str(run))) != fingerprint(backbone)
    assert croc.load_backbone("random:vit_tiny_patch16_224").name == "vit_tiny_patch16_224"
    with pytest.raises(UserError, match=r"load_backbone small: no such.*: small-a, small-b"):
        croc.load_backbone("small")


def test_evaluation_by_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call("linear", "small-a", "scenes:4", tmp_path / "out") == 0
    (line,) = read_results(tmp_path / "out")
    assert (line["weights"], line["backbone"]) == ("small-a", "small-a")
    assert call("linear", "small-c", "scenes:4", tmp_path / "out") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "(shipped weights: small-a, small-b)" in said
    training = find_training("small-a")
    assert (training.data, training.epochs) == ("scenes", "0.7")


def test_a_run_starts_from_a_name(folder: Path):
    backbone = Backbone(ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2), 48)
    assert load_into(backbone, "small-a") == "small-a, tiny, 16 images seen"
    expected = load_file(folder / "small-a.safetensors")["cls_token"].float()
    assert torch.equal(backbone.vit.cls_token, expected)
    with pytest.raises(UserError, match="--init small: no such run"):
        load_into(backbone, "small")


def test_a_path_comes_before_a_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small-a").mkdir()
    with pytest.raises(UserError, match="small-a holds no run"):
        open_backbone("small-a")


def test_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(shipped.VARIABLE, str(tmp_path))
    (tmp_path / "x.safetensors").touch()
    assert shipped.shipped()["x"] == tmp_path / "x.safetensors"
    assert shipped.find_weights("x") == tmp_path / "x.safetensors"
    assert shipped.find_weights("../x") == Path("../x")
    assert Path(__file__).parents[2] / "weights" in shipped.folders()


def test_show_weights(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", "weights", "small-a"]) == 0
    said = capsys.readouterr().out
    assert "images_seen: 16" in said
    assert "recipe: tiny" in said


def rewrite(path: Path, drop: str = "", add: Any = None, **page: Any) -> Path:
    """The file with other words or tensors."""
    metadata, tensors = read_metadata(path), load_file(path)
    held = {**json.loads(metadata["croc"]), **page}
    held.pop(drop, None)
    save_file(tensors | (add or {}), path, {"croc": json.dumps(held)})
    return path


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"model": "vit_nosuch"}, "timm has no model 'vit_nosuch'"),
        ({"model": "__import__('os').system('x')"}, "timm has no model"),
        ({"model": "hf-hub:someone/something"}, "timm has no model"),
        ({"model": "x" * 200_000}, "values are impossible"),
        ({"model": "resnet50"}, "no plain ViT"),
        ({"model": "vit_giant_patch14_224"}, "does not fit"),
        ({"model": 7}, "cannot be read"),
        ({"depth": 10**9}, "has no 1,000,000,000 blocks"),
        ({"depth": 1}, "does not fit: it has blocks.1"),
        ({"depth": 0}, "impossible size"),
        ({"depth": "2"}, "cannot be read"),
        ({"patch_px": 16}, "does not fit"),
        ({"patch_px": 0}, "impossible size"),
        ({"image_px": 10**6}, "impossible size"),
        ({"image_px": 64}, "pos_embed is 1×17×192 there, 1×65×192 here"),
        ({"image_px": 33}, "not a whole number of"),
        ({"epochs": float("nan")}, "values are impossible"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"config": []}, "cannot be read"),
        ({"drop": "licence"}, "'licence'"),
        ({"add": {"head.weight": torch.zeros(2)}}, "it has head.weight too many"),
        ({"add": {"cls_token": torch.full((1, 1, 192), torch.nan)}}, "not finite"),
        ({"add": {"cls_token": torch.zeros(1, 1, 3)}}, "cls_token is 1×1×3 there"),
    ],
)
def test_impossible_files(page: dict[str, Any], said: str, folder: Path):
    path = rewrite(folder / "small-a.safetensors", **page)
    with pytest.raises(UserError) as refused:
        open_backbone("small-a")
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "[" * 100_000, "1" * 10_000, "{}"])
def test_pages_that_are_none(text: str, folder: Path):
    path = folder / "small-a.safetensors"
    save_file(load_file(path), path, {"croc": text})
    with pytest.raises(UserError, match="says of itself cannot be read"):
        describe_file(path)


def test_broken_files(folder: Path):
    path = folder / "small-a.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match="cannot be read as weights"):
        open_backbone("small-a")
    path.write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read as weights"):
        open_backbone("small-a")


def test_unknown_metadata_is_ignored(folder: Path):
    """Among it `context`, of earlier files whose last block is like any other now."""
    path = rewrite(folder / "small-a.safetensors", context=0.5, data=["a\x1b[31m"])
    assert fingerprint(open_backbone("small-a")) == fingerprint(open_backbone("small-b"))
    assert not any("\x1b" in line for line in describe_file(path))


def test_without_a_page_it_is_a_file_like_others(folder: Path):
    path = folder / "small-a.safetensors"
    save_file(load_file(path), path)
    assert "timm's keys" in open_backbone(str(path)).origin
