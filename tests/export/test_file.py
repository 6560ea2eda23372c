"""`croc export`: a file that gives the same features by itself, and a card that tells of it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import croc.weights.shipped
from croc.cli import main
from croc.config import CrocConfig
from croc.errors import UserError
from croc.eval.features import VitBackbone, fingerprint, open_backbone
from croc.eval.results import read_results
from croc.eval.table.identity import identify_network
from croc.train.checkpoint import checkpoints
from croc.train.loop import pretrain
from croc.train.run_folder import parse_config
from croc.weights.export import Export, export
from croc.weights.export.source import seconds_of
from croc.weights.export.writing import write_files
from croc.weights.page import bare, read_page, without_paths
from tests.evals.commands import call
from tests.tiny import tiny_config, tiny_dino, tiny_mae

IMAGES = torch.rand(2, 3, 48, 32, generator=torch.Generator().manual_seed(0))


def features(backbone: Any) -> torch.Tensor:
    return backbone.features(IMAGES, blocks=2)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err


def test_the_features_are_those_of_the_rounded_backbone(run: Path, tmp_path: Path):
    file, _ = export(Export(str(run), str(tmp_path / "new" / "a.safetensors")))
    original, loaded = open_backbone(str(run)), open_backbone(str(file))
    assert not torch.equal(features(loaded), features(original))
    scale = features(original).abs().max()
    assert (features(loaded) - features(original)).abs().max() < 2**-6 * scale
    original.bfloat16().float()
    assert torch.equal(features(loaded), features(original))
    assert fingerprint(loaded) == fingerprint(original)
    assert identify_network(loaded) == identify_network(original)
    assert {value.dtype for value in loaded.state_dict().values()} == {torch.float32}


def test_float32_is_exact(run: Path, tmp_path: Path):
    """Of a checkpoint, and into the run's own folder, where it is no checkpoint."""
    to = run / "a.safetensors"
    file, card = export(Export(str(checkpoints(run)[-1]), str(to), dtype="float32"))
    assert fingerprint(open_backbone(str(file))) == fingerprint(open_backbone(str(run)))
    file.unlink()
    card.unlink()


def test_what_the_file_holds(run: Path, tmp_path: Path):
    file, _ = export(Export(str(run), str(tmp_path / "a.safetensors")))
    with safe_open(file, framework="pt") as held:
        assert not [name for name in held.keys() if "head" in name]  # noqa: SIM118
        assert held.get_tensor("cls_token").dtype == torch.bfloat16
        assert held.metadata()["format"] == "pt"
    page = read_page(file)
    assert page
    assert (page.model, page.patch_px, page.depth) == ("vit_tiny_patch16_224", 8, 2)
    assert (page.image_px, page.step, page.images_seen) == (32, 2, 16)
    assert (page.recipe, page.method, page.network) == ("tiny", "croc", "teacher")
    assert page.epochs == pytest.approx(2 / 3)
    config, recipe = parse_config(page.config, "page")
    assert isinstance(config, CrocConfig)
    assert config.cluster == tiny_config().cluster
    assert recipe == "tiny"
    assert file.stat().st_size < 2.1 * sum(x.numel() for x in open_backbone(str(file)).parameters())


def test_no_path_leaves_the_machine(run: Path, tmp_path: Path):
    config = tiny_config(Path("/home/me/runs/x"))
    data = replace(config.data, root=("/home/me/coco/", "~/more/a-{00..09}.tar", "scenes"))
    model = replace(config.model, init="timm:vit_tiny_patch16_224@/home/me/w.pth")
    found = without_paths(replace(config, data=data, model=model))
    assert found.data.root == ("coco", "a-{00..09}.tar", "scenes")
    assert found.model.init == "timm:vit_tiny_patch16_224@w.pth"
    assert found.run.folder is None
    assert bare("timm:vit_small_patch16_224.dino") == "timm:vit_small_patch16_224.dino"
    for path in export(Export(str(run), str(tmp_path / "a.safetensors"))):
        assert str(run.parent).encode() not in path.read_bytes()


def test_a_method_without_a_teacher(tmp_path: Path):
    run = pretrain(tiny_mae(tmp_path / "mae", stop_after_steps=2), "tiny-mae")
    file, card = export(Export(str(run), str(tmp_path / "a.safetensors")))
    page = read_page(file)
    assert page
    assert (page.method, page.network) == ("mae", "student")
    assert "Masked Autoencoders" in card.read_text()
    expected = open_backbone(str(run)).bfloat16().float()
    assert torch.equal(features(open_backbone(str(file))), features(expected))


def test_the_card(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With the scores of these weights, exact or rounded, and of no others."""
    to, out = tmp_path / "a|b.safetensors", tmp_path / "out"
    for weights in (run, f"random:{run}"):
        assert call("linear", weights, "scenes:8", out, "--hold-out", "0.5") == 0
    assert main(["export", str(run), "--to", str(tmp_path / "same.safetensors")]) == 0
    assert call("linear", tmp_path / "same.safetensors", "scenes:8", out) == 0
    capsys.readouterr()
    licence = ("--licence", "mine | *alone*")
    scores = ("--scores", str(out / "results.jsonl"))
    assert main(["export", str(run), "--to", str(to), *scores, *licence]) == 0
    assert capsys.readouterr().out.split() == [str(to), str(to.with_suffix(".md"))]
    text = to.with_suffix(".md").read_text()
    held, other, rounded = (line["scores"]["mIoU"] for line in read_results(out))
    assert f"| Scenes, 50% of its training part | mIoU {held:.1f} | before rounding |" in text
    assert f"| Scenes, 8 images | mIoU {rounded:.1f} | as here |" in text
    assert text.count("| mIoU") == 2, other
    assert r"mine \| \*alone\*" in text
    assert r"# a\|b" in text
    assert "16 (0.667 epochs)" in text
    assert "@inproceedings{stegmuller2023croc" in text
    assert '"k_start": 5' in text


def test_nothing_is_overwritten(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("a.safetensors", "b.md"):
        (tmp_path / name).write_text("mine")
    for name in ("a", "b"):
        said = refusal(capsys, str(run), "--to", str(tmp_path / f"{name}.safetensors"))
        assert "exists, and nothing is overwritten" in said
    assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors", "b.md"}


def test_refusals(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    to = str(tmp_path / "a.safetensors")
    assert "no run" in refusal(capsys, str(tmp_path / "nowhere"), "--to", to)
    assert "holds no run" in refusal(capsys, str(tmp_path), "--to", to)
    assert "no run" in refusal(capsys, "timm:vit_tiny_patch16_224", "--to", to)
    assert "ends in .safetensors" in refusal(capsys, str(run), "--to", str(tmp_path / "a.onnx"))
    assert "invalid choice" in refusal(capsys, str(run), "--to", to, "--dtype", "int8")
    assert "nowhere" in refusal(capsys, str(run), "--to", to, "--scores", "nowhere")
    lines = (
        {"weights_hash": "0" * 16},
        [1],
        {"weights_hash": fingerprint(open_backbone(str(run)))},
    )
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = refusal(capsys, str(run), "--to", to, "--scores", str(tmp_path / "r.jsonl"))
    assert "holds no scores of these weights" in said
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def full(_: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert not list(tmp_path.iterdir())


def test_seconds_of_all_starts(tmp_path: Path):
    marks = [(1, 5.0), (2, 10.0), (3, 4.0), (4, 6.0), (5, 9.0)]
    lines = [json.dumps({"step": step, "seconds": seconds}) for step, seconds in marks]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert seconds_of(tmp_path, 4) == 16.0
    assert seconds_of(tmp_path, 0) is None
    assert seconds_of(tmp_path / "nowhere", 4) is None


def test_clusters_by_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(croc.weights.shipped, "folders", lambda: [tmp_path])
    monkeypatch.chdir(tmp_path)
    export(Export(str(run), str(tmp_path / "small.safetensors")))
    from PIL import Image

    Image.effect_noise((60, 50), 80).convert("RGB").save("photo.png")
    assert main(["show", "clusters", "--weights", "small", "photo.png"]) == 0
    assert capsys.readouterr().out == "small-clusters.png\n"
    of_one = Path("small-clusters.png").stat().st_size
    assert of_one > 1000
    assert main(["show", "clusters", "--weights", "small"]) == 0  # our own photographs
    assert Path("small-clusters.png").stat().st_size > of_one
    capsys.readouterr()
    dino = pretrain(tiny_dino(tmp_path / "dino", stop_after_steps=2), "tiny-dino")
    export(Export(str(dino), str(tmp_path / "other.safetensors")))
    bad = [
        (("--weights", "smal", "photo.png"), "shipped weights: other, small"),
        (("--weights", str(run), "photo.png"), "a run's folder is for --run"),
        (("--weights", "other", "photo.png"), "other methods know no clusters"),
        (("--weights", "small", "--run", str(run)), "say whose clusters"),
        ((), "say whose clusters"),
        (("--weights", "small", "--step", "3"), "--step is for --run"),
    ]
    for arguments, said in bad:
        assert main(["show", "clusters", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_only_a_vit_is_what_it_gives(run: Path, tmp_path: Path):
    file, _ = export(Export(str(run), str(tmp_path / "a.safetensors")))
    assert isinstance(open_backbone(str(file)), VitBackbone)
    with pytest.raises(UserError, match="exists"):
        export(Export(str(run), str(file)))
