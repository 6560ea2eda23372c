"""Backbones for evaluation, and images to patch features: sizes, kept features, moments."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from croc.config import write_config
from croc.errors import UserError
from croc.eval.datasets import LabeledImage
from croc.eval.features import Moments, PatchFeatures, in_order, kept_ratio
from croc.eval.machine import Machine
from croc.method.croc import Croc
from croc.method.mae import Mae
from croc.weights.backbones import DenseBackbone, fingerprint
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.open import open_backbone
from tests.eval.fakes import Counting, MeanColor, Patches
from tests.tiny import tiny_config, tiny_mae

SMALL: dict[str, Any] = {"image_px": 32, "label_px": 8, "blocks": 1, "batch": 2}


class Identity(DenseBackbone):
    name, stride_px = "identity", 1

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        return images


@pytest.mark.parametrize("workers", [0, 1])
def test_images_are_squashed_and_normalized(workers: int):
    data = Patches(5, 0)
    options = {**SMALL, "image_px": 16}
    patches = PatchFeatures(Identity(), Machine(workers=workers), data, **options)
    batches = list(patches.batches(in_order(5, 2)))
    assert [tuple(images.shape) for images, _ in batches] == [(n, 3, 16, 16) for n in (2, 2, 1)]
    images, labels = batches[2]
    assert np.array_equal(labels[0].numpy(), data.read(4).labels[2::4, 2::4])
    pixel = (float(data.read(4).image[12, 4, 0]) / 255 - 0.485) / 0.229
    assert images[0, 0, 6, 2].item() == pytest.approx(pixel, abs=0.05)


class Tall(Patches):
    """Images of several sizes."""

    def read(self, index: int) -> LabeledImage:
        read = super().read(index)
        rows = 24 + 4 * index
        return LabeledImage(read.image[:rows], read.labels[:rows], read.name)


def test_the_ratio_and_the_labels_size_may_be_kept():
    options = {**SMALL, "image_px": 48, "label_px": None}
    patches = PatchFeatures(MeanColor(), Machine(), Tall(3, 0), **options, keep_ratio=True)
    batches = list(patches.all_batches("features"))
    assert [tuple(features.shape[2:]) for features, _ in batches] == [(6, 8), (6, 7), (6, 6)]
    assert [tuple(labels.shape) for _, labels in batches] == [(1, 24, 32), (1, 28, 32), (1, 32, 32)]
    patches.keep()
    assert patches.cached is None
    assert kept_ratio((100, 50), 512, 16) == (1024, 512)
    assert kept_ratio((50, 5000), 512, 16) == (512, 2048)


def test_features_are_kept_if_they_fit(monkeypatch: pytest.MonkeyPatch):
    backbone = Counting()
    roomy = PatchFeatures(backbone, Machine(), Patches(5, 0), **SMALL)
    monkeypatch.setattr("croc.eval.features.free_memory", lambda: 4000)
    tight = PatchFeatures(MeanColor(), Machine(), Patches(5, 0), **SMALL)
    for patches in (roomy, tight):
        patches.keep()
        patches.keep()
    assert roomy.cached is not None
    assert roomy.cached[0].shape == (5, 6, 4, 4)
    assert tight.cached is None
    for kept, computed in (
        (roomy.all_batches("features"), tight.all_batches("features")),
        (roomy.batches([[3, 1]]), tight.batches([[3, 1]])),
        (roomy.subset([4, 1, 3]).batches([[2, 0]]), tight.subset([4, 1, 3]).batches([[2, 0]])),
    ):
        for tensors, expected in zip(kept, computed, strict=True):
            assert all(map(torch.equal, tensors, expected))
    assert backbone.images == 5


def test_moments_equal_torchs():
    features = 3 * torch.randn(50, 2, 4, 4) + 1e4  # far from 0
    moments = Moments()
    for part in features.split(7):
        moments.add(part)
    flat = features.movedim(1, 0).flatten(1).double()
    torch.testing.assert_close(moments.mean, flat.mean(dim=1).float())
    torch.testing.assert_close(moments.deviation, flat.std(dim=1).float(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moments.covariance, flat.cov(correction=0), atol=1e-2, rtol=1e-3)


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


def test_a_vit_made_for_pooled_tokens_norms_its_patches_too():
    backbone = open_backbone("random:vit_little_patch16_reg4_gap_256")
    features = backbone.features(torch.randn(1, 3, 64, 64))
    torch.testing.assert_close(features.mean(dim=1), torch.zeros(1, 4, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(dim=1), torch.ones(1, 4, 4), atol=1e-2, rtol=0)


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
