"""Backbones for evaluation: from a run, from timm, by name; features against timm's own."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from croc.config import write_config
from croc.errors import UserError
from croc.method.croc import Croc
from croc.method.mae import Mae
from croc.weights.backbones import VitBackbone, fingerprint
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.open import open_backbone
from tests.tiny import tiny_config, tiny_mae

PATCHES = "vit.patch_embed.proj.weight"


def test_a_runs_teacher_is_evaluated_or_else_its_student(run: Path, tmp_path: Path):
    backbone, earlier = open_backbone(str(run)), open_backbone(str(checkpoints(run)[0]))
    assert (backbone.name, earlier.name, backbone.stride_px) == ("tiny@3", "tiny@2", 8)
    assert fingerprint(earlier) != fingerprint(backbone) == fingerprint(open_backbone(str(run)))
    state = load_checkpoint(checkpoints(run)[-1])
    teacher, student = (
        state["modules"][name][f"backbone.{PATCHES}"] for name in ("teacher", "student")
    )
    assert torch.equal(backbone.state_dict()[PATCHES], teacher)
    del state["modules"]["teacher"]
    torch.save(state, tmp_path / "step-00000003.pt")
    shutil.copy(run / "config.json", tmp_path)
    alone = open_backbone(str(tmp_path / "step-00000003.pt"))
    assert torch.equal(alone.state_dict()[PATCHES], student)
    assert not torch.equal(teacher, student)


def test_tokens_of_the_last_blocks_are_normed_and_concatenated(run: Path):
    backbone = open_backbone(str(run))
    assert isinstance(backbone, VitBackbone)
    images = torch.randn(2, 3, 48, 32)
    seen: list[torch.Tensor] = []
    for block in backbone.vit.blocks:
        block.register_forward_hook(lambda *call: seen.append(call[2]))
    features = backbone.features(images, blocks=2)
    expected = torch.cat([backbone.vit.norm(tokens)[:, 1:] for tokens in seen], dim=-1)
    torch.testing.assert_close(features.flatten(2).mT, expected)
    assert features.shape == (2, 2 * 192, 6, 4)


@pytest.mark.parametrize(("name", "width"), [("vit_tiny_patch16_224", 192), ("resnet50", 2048)])
def test_random_networks_of_timm(name: str, width: int):
    backbone = open_backbone(f"random:{name}")
    features = backbone.features(torch.randn(1, 3, 64, 96))
    assert features.shape == (1, width, 4, 6)
    assert not features.requires_grad
    again, other = (open_backbone(f"random:{name}", seed) for seed in (0, 1))
    assert fingerprint(backbone) == fingerprint(again) != fingerprint(other)


@pytest.mark.parametrize("config", [tiny_config(), tiny_mae()])
def test_a_run_before_its_first_step(config, tmp_path: Path):
    write_config(tmp_path, config, "tiny")
    untrained = open_backbone(f"random:{tmp_path}")
    assert untrained.name == f"{tmp_path.name}@0"
    torch.manual_seed(config.run.seed)
    method = (Croc if config == tiny_config() else Mae)(config, torch.device("cpu"))
    for name, value in method.student.backbone.vit.state_dict().items():
        assert torch.equal(value, untrained.state_dict()[f"vit.{name}"])


@pytest.mark.parametrize(
    ("name", "head", "layout"),
    [("vit_tiny_patch16_224", "head", "safetensors"), ("resnet18", "fc", "wrapped")],
)
def test_weights_of_a_file(name: str, head: str, layout: str, tmp_path: Path):
    model = timm.create_model(name, num_classes=7)
    weights = model.state_dict()
    path = tmp_path / ("w.safetensors" if layout == "safetensors" else "w.pth")
    if layout == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"model": weights, "epoch": 3}, path)
    backbone = open_backbone(f"timm:{name}@{path}")
    images = torch.randn(1, 3, 224, 224)
    model.eval()
    if head == "head":
        expected = model.forward_features(images)[:, 1:].mT.reshape(1, 192, 14, 14)  # pyright: ignore
        torch.testing.assert_close(backbone.features(images), expected)
    bare = {key: value for key, value in weights.items() if not key.startswith(head)}
    torch.save(bare, tmp_path / "bare.pth")
    same = open_backbone(f"timm:{name}@{tmp_path / 'bare.pth'}")
    torch.testing.assert_close(same.features(images), backbone.features(images))


def test_networks_that_do_not_fit(tmp_path: Path):
    scaled = timm.create_model("vit_tiny_patch16_224", init_values=1e-5)
    torch.save(scaled.state_dict(), tmp_path / "w.pth")
    for spec, message in (
        ("random:resnet5", "did you mean resnet5"),
        ("random:mixer_b16_224", "gives no feature map"),
        ("random:vgg11", "gives no feature map"),
        (f"timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}", "does not fit .*ls1.gamma"),
    ):
        with pytest.raises(UserError, match=message):
            open_backbone(spec)


def test_a_vit_made_for_pooled_tokens_norms_its_patches_too():
    backbone = open_backbone("random:vit_little_patch16_reg4_gap_256")
    features = backbone.features(torch.randn(1, 3, 64, 64))
    torch.testing.assert_close(features.mean(dim=1), torch.zeros(1, 4, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(dim=1), torch.ones(1, 4, 4), atol=1e-2, rtol=0)
