"""Backbones for evaluation: from a run, from timm, by name; features against timm's own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from croc.checkpoint import checkpoints, load_checkpoint
from croc.errors import UserError
from croc.evals.features import DenseBackbone, VitBackbone, fingerprint, open_backbone
from croc.train import pretrain
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=3, checkpoint_every_steps=2), "tiny")


def test_a_runs_teacher_is_evaluated(run: Path):
    backbone = open_backbone(str(run))
    assert isinstance(backbone, DenseBackbone)
    assert (backbone.name, backbone.stride_px) == ("tiny@3", 8)
    weights = load_checkpoint(checkpoints(run)[-1])["modules"]
    ours = backbone.state_dict()["vit.patch_embed.proj.weight"]
    assert torch.equal(ours, weights["teacher"]["backbone.vit.patch_embed.proj.weight"])
    assert not torch.equal(ours, weights["student"]["backbone.vit.patch_embed.proj.weight"])
    earlier = open_backbone(str(checkpoints(run)[0]))
    assert earlier.name == "tiny@2"
    assert fingerprint(earlier) != fingerprint(backbone)
    assert fingerprint(open_backbone(str(run))) == fingerprint(backbone)


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
    with pytest.raises(UserError, match="has 2 blocks, not 4"):
        backbone.features(images, blocks=4)


@pytest.mark.parametrize(
    ("name", "width", "stride"),
    [("vit_tiny_patch16_224", 192, 16), ("resnet50", 2048, 16)],
)
def test_random_networks_of_timm(name: str, width: int, stride: int):
    backbone = open_backbone(f"random:{name}", image_px=64)
    features = backbone.features(torch.randn(1, 3, 64, 96))
    assert features.shape == (1, width, 64 // stride, 96 // stride)
    assert not features.requires_grad
    assert backbone.stride_px == stride
    again, other = (open_backbone(f"random:{name}", 64, seed) for seed in (0, 1))
    assert fingerprint(backbone) == fingerprint(again) != fingerprint(other)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere", "no such run or file"),
        ("random:resnet5", "near to it: resnet5"),
        ("random:mlp_mixer_b16", "timm has no model"),
        ("random:mixer_b16_224", "gives no feature map"),
    ],
)
def test_what_cannot_serve_is_said(spec: str, said: str):
    with pytest.raises(UserError, match=said):
        open_backbone(spec)


def test_folders_and_files_that_are_no_runs(tmp_path: Path):
    (tmp_path / "weights.pt").write_bytes(b"?")
    with pytest.raises(UserError, match="holds no run"):
        open_backbone(str(tmp_path))
    with pytest.raises(UserError, match="lies in no run's folder"):
        open_backbone(str(tmp_path / "weights.pt"))


def test_evaluation_does_not_import_training():
    """It must load and score weights where nothing is trained."""
    code = "import croc.evals.features, sys; print([m for m in sys.modules if 'croc' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "croc.train" not in done.stdout
    assert "croc.methods" not in done.stdout
