"""Weights by name, wherever weights are named; and a run's start from weights (--init)."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import croc
from croc.cli import main
from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.method.photometric import IMAGENET_MEAN
from croc.weights import open as weights_open
from croc.weights.backbones import DenseBackbone, fingerprint
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.init import load_into
from croc.weights.open import describe_file, open_backbone, save_backbone
from tests.weights.projects import VITS

TINY = ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2)


def test_load_backbone(run: Path, bundled: Path):
    backbone = croc.load_backbone("small-a")
    assert isinstance(backbone, DenseBackbone)
    assert not any(module.training for module in backbone.modules())
    assert {value.dtype for value in backbone.parameters()} == {torch.float32}
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
    assert lines[0] == "network: croc.pth (ViT, 3 heads assumed, from teacher.backbone)"
    assert "architecture: vit_tiny_patch16_224" in lines
    assert "n_centroids_max: 8" in lines


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


def test_a_run_starts_from_timm_with_a_file(tmp_path: Path):
    vit: Any = timm.create_model("vit_tiny_patch16_224")
    torch.save(vit.state_dict(), tmp_path / "w.pth")
    backbone = Backbone(ModelConfig("vit_tiny_patch16_224"), 224)
    before = torch.random.get_rng_state()
    spec = f"timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}"
    assert load_into(backbone, spec) == "vit_tiny_patch16_224"
    load_into(backbone, str(tmp_path / "w.pth"))
    assert torch.equal(torch.random.get_rng_state(), before), "heads must not depend on --init"
    for name, value in backbone.vit.state_dict().items():
        assert torch.equal(value, vit.state_dict()[name])


@pytest.mark.parametrize("method", ["croc", "dino"])
def test_runs_of_earlier_versions_load(method: str):
    run = Path(__file__).parents[1] / "golden" / "runs" / method
    trained, untrained = open_backbone(str(run)), open_backbone(f"random:{run}")
    assert trained.name == f"{method}@4"
    assert fingerprint(trained) != fingerprint(untrained)
