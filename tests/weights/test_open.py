"""Weights by name, and a run that starts from weights: its network is theirs unless asked for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import croc
from croc.cli import main
from croc.config import CrocConfig, ModelConfig, ViewsConfig, parse_config, read_config
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.method.photometric import IMAGENET_MEAN
from croc.recipes import RECIPES
from croc.weights import open as weights_open
from croc.weights.backbones import DenseBackbone, fingerprint
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.init import follow_init, load_into
from croc.weights.open import bundled_weights, describe_file, open_backbone, save_backbone
from croc.weights.record import read_record, without_paths
from tests.tiny import FLAGS
from tests.weights.projects import VITS, dinov2, prefixed, zeros

TINY = ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2)


def test_load_backbone(run: Path, bundled: Path):
    backbone = croc.load_backbone("small-a")
    assert isinstance(backbone, DenseBackbone)
    assert backbone.features(torch.rand(1, 3, 32, 48)).shape == (1, 192, 4, 6)
    for name in (str(bundled / "small-a.safetensors"), "small-b"):
        assert fingerprint(croc.load_backbone(name)) == fingerprint(backbone)
    assert fingerprint(croc.load_backbone(str(run))) != fingerprint(backbone)
    assert croc.load_backbone("random:vit_tiny_patch16_224").name == "vit_tiny_patch16_224"
    with pytest.raises(UserError, match=r"load_backbone small: no such.*: small-a, small-b"):
        croc.load_backbone("small")


def test_where_bundled_weights_are(bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path comes before a name; a file without metadata is recognized by its keys."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small-a").mkdir()
    with pytest.raises(UserError, match="small-a has no run"):
        open_backbone("small-a")
    path = bundled / "small-b.safetensors"
    save_file(load_file(path), path)
    assert open_backbone("small-b").origin == "small-b.safetensors (ViT, 3 heads assumed)"


def test_the_environment_variable_comes_before_the_checkout(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(weights_open.FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "coco-20min.safetensors").touch()
    assert weights_open.find_weights("coco-20min") == tmp_path / "coco-20min.safetensors"
    assert weights_open.find_weights("../x") == Path("../x")
    assert Path(__file__).parents[2] / "weights" in weights_open.bundled_folders()


def test_show_weights(run: Path, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for weights in ("small-a", str(run)):
        assert main(["show", "weights", weights]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {"images_seen: 24", "recipe: tiny"} <= set(lines)
    vit: Any = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    torch.save(VITS["croc_authors"](vit.state_dict()), tmp_path / "croc.pth")
    lines = describe_file(tmp_path / "croc.pth")
    assert {"architecture: vit_tiny_patch16_224", "n_centroids_max: 8"} <= set(lines)


def test_timms_networks_normalize_as_they_were_trained(tmp_path: Path):
    """A mean and deviation of a half, also after a head was stored; ImageNet's in older files."""
    vit: Any = timm.create_model("vit_tiny_patch16_224", depth=12).eval()
    torch.save(vit.state_dict(), tmp_path / "w.pth")
    backbone: Any = open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}")
    image = torch.rand(3, 224, 224)
    (ours,) = croc.features(image, backbone, size_px=(224, 224))
    with torch.no_grad():
        expected = vit.forward_features((image[None] - 0.5) / 0.5)[0, 1:]
    torch.testing.assert_close(ours.patches.flatten(0, 1), expected, atol=1e-4, rtol=1e-4)

    save_backbone(backbone, tmp_path / "stored.safetensors")
    stored = open_backbone(str(tmp_path / "stored.safetensors"))
    assert (stored.mean, fingerprint(stored)) == ([0.5] * 3, fingerprint(backbone))
    tensors = load_file(tmp_path / "stored.safetensors")
    record = {"architecture": "vit_tiny_patch16_224", "options": backbone.record.options}
    save_file(tensors, tmp_path / "older.safetensors", {"croc.network": json.dumps(record)})
    older = open_backbone(str(tmp_path / "older.safetensors"))
    assert tuple(older.mean) == IMAGENET_MEAN
    assert fingerprint(older) != fingerprint(backbone)


def test_a_run_starts_from_views_of_another_size(run: Path, bundled: Path):
    backbone = Backbone(TINY, 48)
    load_into(backbone, str(run))
    teacher = load_checkpoint(checkpoints(run)[-1])["modules"]["teacher"]
    expected = timm.layers.pos_embed.resample_abs_pos_embed(
        teacher["backbone.vit.pos_embed"], new_size=[6, 6], num_prefix_tokens=1
    )
    torch.testing.assert_close(backbone.vit.pos_embed, expected)
    assert load_into(backbone, "small-a") == "small-a, tiny, 24 images seen"
    rounded = load_file(bundled / "small-a.safetensors")["cls_token"].float()
    assert torch.equal(backbone.vit.cls_token, rounded)


SMALL: dict[str, Any] = {"depth": 2, "num_classes": 0, "img_size": 56}


def save(content: Any) -> None:
    torch.save(content, "w.pth")


def vit(name: str, **options: Any) -> dict[str, Any]:
    return dict(timm.create_model(name, **(SMALL | options)).state_dict())


def without_norm() -> dict[str, Any]:
    weights = vit("vit_base_patch16_224", img_size=64)
    weights = {key: value for key, value in weights.items() if not key.startswith("norm.")}
    return {"state_dict": prefixed("module.encoder_q.backbone.", weights)} | zeros("queue")


REGISTERS, EVA = "vit_small_patch14_reg4_dinov2", "eva02_tiny_patch14_224"
CASES: dict[str, tuple[Any, str, tuple[str, int, int]]] = {
    "DINO": (
        lambda: VITS["dino_full"](vit("vit_small_patch16_224", patch_size=8)),
        "w.pth",
        ("vit_small_patch16_224", 8, 2),
    ),
    "no final norm": (without_norm, "w.pth", ("vit_base_patch16_224", 16, 2)),
    "registers": (lambda: dinov2(vit(REGISTERS)), "w.pth", (REGISTERS, 14, 2)),
    "timm's Eva": (lambda: vit(EVA, depth=12, img_size=224), f"timm:{EVA}@w.pth", (EVA, 14, 12)),
}


@pytest.mark.parametrize("case", CASES)
def test_network_and_views_follow(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    content, init, (name, patch_px, depth) = CASES[case]
    save(content())
    for recipe in ("posttrain", "demo", "mae-coco-20min"):
        config: Any = RECIPES[recipe]()
        config = replace(config, model=replace(config.model, init=init))
        followed = follow_init(config, recipe, {"data.root"})
        expected = replace(config.model, name=name, patch_px=patch_px, depth=depth)
        assert followed.model == expected
        size_px = followed.views.size_px
        assert size_px % patch_px == 0
        assert abs(size_px - config.views.size_px) <= patch_px / 2
        assert replace(followed, model=config.model, views=config.views) == config
    backbone = Backbone(followed.model, 4 * patch_px).eval()
    load_into(backbone, init)
    images = torch.randn(1, 3, 4 * patch_px, 4 * patch_px)
    source: Any = open_backbone(init)
    if case != "no final norm":  # it gets one
        ours = backbone.vit.eval().forward_features(images)
        torch.testing.assert_close(ours, source.vit.forward_features(images))


def test_what_is_passed_or_fits_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save(timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict())
    init = "timm:vit_tiny_patch16_224@w.pth"
    model = ModelConfig("vit_tiny_patch16_224", init=init)
    assert follow_init(CrocConfig(model=model), "any", set()).model == model  # as in earlier runs
    other = CrocConfig(model=replace(model, name="vit_small_patch16_224"))
    for option in ("model.name", "model.patch-px", "model.depth"):
        assert follow_init(other, "any", {option}) == other
    sized = replace(other, views=ViewsConfig(size_px=200, early_px=90, early_epochs=1))
    followed = follow_init(sized, "any", {"views.size-px"})
    assert (followed.views.size_px, followed.views.early_px) == (200, 96)
    fresh = replace(other, model=ModelConfig())
    assert follow_init(fresh, "any", set()) == fresh


def test_commands_follow_and_resume_without_the_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(timm.create_model(EVA, num_classes=0).state_dict())
    init = f"timm:{EVA}@w.pth"
    shape = {"--model.depth", "--model.drop-path", "--views.size-px"}
    pairs = zip(FLAGS[::2], FLAGS[1::2])
    flags = [word for flag, value in pairs if flag not in shape for word in (flag, value)]
    flags += ["--data.root", "scenes", "--data.workers", "0", "--head.image-prototypes", "64"]
    flags += ["--head.cluster-prototypes", "32"]
    command = ["pretrain", "posttrain", "--init", init, *flags]
    size = ["--views.size-px", "42", "--run.folder", "run"]
    assert main([*command, "--run.folder", "no", "--views.size-px", "40"]) == 2
    assert "try --views.size-px 42" in capsys.readouterr().err
    assert main([*command, *size, "--run.stop-after-steps", "1"]) == 0
    (tmp_path / "w.pth").unlink()
    assert main([*command, *size, "--run.stop-after-steps", "2"]) == 0
    assert "resumes from step 1" in capsys.readouterr().err
    config, _ = read_config(Path("run/config.json"))
    assert (config.model.name, config.model.patch_px) == (EVA, 14)


NAME = "coco-20min"


def test_the_file_is_the_exported_one():
    """Its card's scores are of the same run in float32, before it was rounded to this file."""
    path = bundled_weights()[NAME]
    backbone = croc.load_backbone(NAME)
    assert fingerprint(backbone) == "f6434377e162559b"
    assert path.stat().st_size < 40_000_000
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "/tmp" not in card
    vit: Any = timm.create_model("vit_small_patch16_224", depth=11, img_size=192, num_classes=0)
    vit.load_state_dict(load_file(path), strict=True)
    for name, parameter in vit.blocks.named_parameters():
        # Only a block that was set by hand has matrices with rows of zeros.
        assert parameter.ndim == 1 or parameter.any(dim=1).all(), name


def test_the_recipe_is_still_that_of_the_weights():
    record = read_record(bundled_weights()[NAME])
    config, recipe = parse_config(record.config, NAME)
    expected = RECIPES[recipe]()
    assert recipe == NAME
    for part in ("views", "model", "head", "cluster", "loss", "optim"):
        assert getattr(config, part) == getattr(without_paths(expected), part), part
