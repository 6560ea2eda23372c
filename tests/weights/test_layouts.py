"""Every project's layout, written as that project does: recognised, and the features are equal."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from croc.config import ModelConfig
from croc.errors import UserError
from croc.eval.features import ConvBackbone, VitBackbone, open_backbone
from croc.method.backbone import Backbone
from croc.weights.files import read_named_tensors
from croc.weights.layouts import recognise
from croc.weights.start import load_into
from croc.weights.vit import _measure
from tests.weights.projects import VITS, State, Write, dinov2, other, prefixed, zeros
from tests.weights.resnet_projects import RESNETS, moco

SMALL: dict[str, Any] = {"depth": 2, "img_size": 64, "num_classes": 0, "dynamic_img_size": True}


def randomised(network: nn.Module) -> nn.Module:
    """No tensor as it was made, so that one that is not loaded shows."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, value in network.state_dict().items():
            if not value.is_floating_point():
                continue
            drawn = torch.randn_like(value)
            near_one = name.endswith("running_var") or (value.ndim == 1 and "weight" in name)
            value.copy_(1 + 0.1 * drawn.clamp(-3, 3) if near_one else 0.05 * drawn)
    return network.eval()


@pytest.fixture(scope="module")
def vit() -> Any:
    return randomised(timm.create_model("vit_small_patch16_224", **SMALL))


@pytest.fixture(scope="module")
def resnet() -> Any:
    dilated = [False, False, True]
    return randomised(torchvision.models.resnet50(replace_stride_with_dilation=dilated))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def vit_features(vit: Any, images: Tensor, rows: int = 4) -> Tensor:
    tokens = vit.forward_features(images)[:, vit.num_prefix_tokens :]
    return tokens.mT.unflatten(2, (rows, rows))


@pytest.fixture(scope="module")
def resnet_weights(resnet: Any) -> State:
    return {k: v for k, v in resnet.state_dict().items() if not k.startswith("fc.")}


@pytest.fixture(scope="module")
def resnet_features(resnet: Any, images: Tensor) -> Tensor:
    stages = torchvision.models.feature_extraction.create_feature_extractor(resnet, ["layer4"])
    with torch.no_grad():
        return stages(images)["layer4"]


def weights_of(vit: Any, write: Write) -> State:
    """CP²'s ViT has no final norm."""
    weights = dict(vit.state_dict())
    return (
        weights if write.__name__ != "cp2" else {k: weights[k] for k in weights if k[:4] != "norm"}
    )


@pytest.mark.parametrize("write", VITS, ids=lambda write: write.__name__)
def test_vits(write: Write, vit: Any, images: Tensor, tmp_path: Path):
    path = tmp_path / "a.b"  # the name must tell nothing
    write(weights_of(vit, write), path)
    backbone = open_backbone(str(path), image_px=64)
    assert isinstance(backbone, VitBackbone)
    norm, vit.norm = vit.norm, nn.Identity() if write.__name__ == "cp2" else vit.norm
    expected = vit_features(vit, images)
    vit.norm = norm
    torch.testing.assert_close(backbone.features(images), expected, atol=1e-5, rtol=1e-5)
    assert backbone.vit.blocks[0].attn.num_heads == 6


@pytest.mark.parametrize("write", VITS, ids=lambda write: write.__name__)
def test_a_run_starts_from_vits(write: Write, vit: Any, tmp_path: Path):
    write(weights_of(vit, write), tmp_path / "a.b")
    backbone = Backbone(ModelConfig("vit_small_patch16_224", depth=2), 64)
    said = load_into(backbone, str(tmp_path / "a.b"))
    assert "a.b" in said
    assert ("no final norm" in said) == (write.__name__ == "cp2")
    for name, value in backbone.vit.state_dict().items():
        if write.__name__ == "cp2" and name.startswith("norm."):
            assert value.unique().tolist() in ([0.0], [1.0])
        else:
            torch.testing.assert_close(value, vit.state_dict()[name], atol=0, rtol=0)
    assert all(parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize("write", RESNETS, ids=lambda write: write.__name__)
def test_resnets(
    write: Write, resnet_weights: State, resnet_features: Tensor, images: Tensor, tmp_path: Path
):
    write(resnet_weights, tmp_path / "a.b")
    backbone = open_backbone(str(tmp_path / "a.b"))
    assert isinstance(backbone, ConvBackbone)
    torch.testing.assert_close(backbone.features(images), resnet_features, atol=1e-5, rtol=1e-5)


def test_dinov2_with_registers(tmp_path: Path):
    """DINOv2 gives the class token its position, timm does not: timm's own reading is the judge."""
    name, size = "vit_small_patch14_reg4_dinov2", SMALL | {"img_size": 56}
    vit: Any = randomised(timm.create_model(name, **size))
    class_position = torch.randn(1, 1, 384)
    theirs = dict(vit.state_dict())
    theirs["cls_token"] = theirs["cls_token"] - class_position
    theirs["pos_embed"] = torch.cat([class_position, theirs["pos_embed"]], dim=1)
    dinov2(theirs, tmp_path / "a.b")
    backbone = open_backbone(str(tmp_path / "a.b"), image_px=56)
    images = torch.randn(1, 3, 56, 56)
    expected = vit_features(vit, images)
    torch.testing.assert_close(backbone.features(images), expected, atol=1e-5, rtol=1e-5)
    started = Backbone(ModelConfig(name, depth=2), 56)
    assert "DINOv2, from teacher.backbone" in load_into(started, str(tmp_path / "a.b"))
    torch.testing.assert_close(started.vit.cls_token, vit.cls_token, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (VITS[0], "the authors' CrOC full checkpoint, from teacher.backbone"),
        (VITS[1], "DINO full checkpoint, from teacher.module.backbone"),
        (VITS[2], "ViT in timm's keys"),
        (VITS[7], "CP² full checkpoint, from state_dict.module.encoder_q.backbone"),
        (VITS[8], "Leopart, from model"),
        (VITS[9], "CrOC checkpoint, from modules.teacher.backbone.vit"),
    ],
)
def test_what_was_taken_is_said(write: Write, said: str, vit: Any, tmp_path: Path):
    write(dict(vit.state_dict()), tmp_path / "w")
    tensors = read_named_tensors(tmp_path / "w")
    found = recognise(tensors)
    assert found.layout == said
    assert set(found.weights) == set(vit.state_dict())
    assert len(found.dropped) + len(found.weights) == len(tensors)
    assert not [name for name in tensors if name.startswith("optimizer")]


def test_a_file_is_as_good_as_its_name_at_timm(vit: Any, images: Tensor, tmp_path: Path):
    """Also with positions resampled: 4×4 to 6×6 and to images of other shapes."""
    whole = randomised(timm.create_model("vit_tiny_patch16_224"))
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    by_file = open_backbone(str(tmp_path / "w.pth"), image_px=96)
    by_name = open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}", image_px=96)
    wide = torch.randn(1, 3, 64, 128)
    for each in (images, wide):
        torch.testing.assert_close(by_file.features(each, 2), by_name.features(each, 2))


def test_the_mean_of_positions_survives_resampling(vit: Any, tmp_path: Path):
    weights = dict(vit.state_dict())
    weights["pos_embed"] = torch.cat([torch.full((1, 1, 384), 2.0), torch.ones(1, 16, 384)], dim=1)
    torch.save(weights, tmp_path / "w.pth")
    backbone = Backbone(ModelConfig("vit_small_patch16_224", depth=2), 112)
    load_into(backbone, str(tmp_path / "w.pth"))
    assert backbone.vit.pos_embed.shape == (1, 50, 384)
    torch.testing.assert_close(backbone.vit.pos_embed[:, 0], torch.full((1, 384), 2.0))
    torch.testing.assert_close(backbone.vit.pos_embed[:, 1:], torch.ones(1, 49, 384))


@pytest.mark.parametrize("patch_px", [8, 16, 32])
def test_the_patch_size_is_the_kernels(patch_px: int, tmp_path: Path):
    """All have the same 16 positions."""
    size = SMALL | {"img_size": 4 * patch_px, "patch_size": patch_px}
    vit: Any = randomised(timm.create_model("vit_tiny_patch16_224", **size))
    torch.save(vit.state_dict(), tmp_path / "w.pth")
    backbone = open_backbone(str(tmp_path / "w.pth"), image_px=4 * patch_px)
    assert backbone.stride_px == patch_px
    images = torch.randn(1, 3, 4 * patch_px, 4 * patch_px)
    expected = vit_features(vit, images)
    torch.testing.assert_close(backbone.features(images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"qkv_bias": False},
        {"init_values": 0.1},
        {"class_token": False, "global_pool": "avg"},
        {"reg_tokens": 4},
        {"reg_tokens": 4, "no_embed_class": True},
        {"mlp_ratio": 2.0},
        {"embed_dim": 256, "num_heads": 4},
    ],
    ids=str,
)
def test_measures_are_told_by_shapes(options: dict[str, Any], images: Tensor, tmp_path: Path):
    vit: Any = randomised(timm.create_model("vit_tiny_patch16_224", **(SMALL | options)))
    torch.save({"net": prefixed("vit.", vit.state_dict())}, tmp_path / "w.pth")
    backbone = open_backbone(str(tmp_path / "w.pth"), image_px=64)
    expected = VitBackbone(vit, "made").features(images)
    torch.testing.assert_close(backbone.features(images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "huge", "giant", "gigantic"])
def test_heads_are_those_of_timms_vits_of_that_width(size: str):
    name = next(each for each in timm.list_models(f"vit_{size}_patch*") if "clip" not in each)
    with torch.device("meta"):
        vit: Any = timm.create_model(name, depth=1, img_size=56, class_token=True)
    options = _measure(other(vit.state_dict()), "", "w.pth")
    assert options["num_heads"] == vit.blocks[0].attn.num_heads
    hidden = int(options["embed_dim"] * options["mlp_ratio"])
    assert hidden == vit.blocks[0].mlp.fc1.out_features


def test_the_heads_of_moco_v3s_small_vit_are_narrower(vit: Any):
    found = recognise(prefixed("module.base_encoder.", vit.state_dict()))
    assert found.options["num_heads"] == 12


def test_an_averaged_network_comes_first(vit: Any, tmp_path: Path):
    weights = dict(vit.state_dict())
    torch.save({"model": zeros_like(weights), "model_ema": weights}, tmp_path / "w.pth")
    found = recognise(read_named_tensors(tmp_path / "w.pth"))
    assert found.layout.endswith("from model_ema")
    assert torch.equal(found.weights["pos_embed"], weights["pos_embed"])


def zeros_like(weights: State) -> State:
    return {name: torch.zeros_like(value) for name, value in weights.items()}


@pytest.mark.parametrize("count", [18, 34, 101])
def test_other_depths_of_resnets(count: int, tmp_path: Path):
    made: Any = timm.create_model(f"resnet{count}")
    assert recognise(made.state_dict()).architecture == f"resnet{count}"


def refusal(tensors: State) -> str:
    with pytest.raises(UserError) as refused:
        recognise(tensors, "w.pth")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_not_known_is_said(vit: Any, resnet_weights: State):
    unknown = zeros(**{f"features__{number}__weight": (3,) for number in range(9)})
    assert "first keys: features.0.weight, features.1.weight" in refusal(unknown)
    assert "first keys: none" in refusal({})
    weights = dict(vit.state_dict())
    assert "not plain: it has blocks.0.attn.q_norm.weight" in refusal(
        weights | zeros(blocks__0__attn__q_norm__weight=(64,))
    )
    assert "no blocks.1.mlp.fc2.weight" in refusal(without(weights, "blocks.1.mlp.fc2.weight"))
    assert "no pos_embed" in refusal(without(weights, "pos_embed"))
    oblong = weights | zeros(patch_embed__proj__weight=(384, 3, 16, 8))
    assert "16×8 px are not square" in refusal(oblong)
    assert "18 position embeddings" in refusal(weights | zeros(pos_embed=(1, 18, 384)))
    assert "[3, 4, 6, 0] blocks" in refusal(
        {k: v for k, v in resnet_weights.items() if not k.startswith("layer4")}
    )
    assert "not plain: it has layer1.0.se.fc1.weight" in refusal(
        resnet_weights | zeros(layer1__0__se__fc1__weight=(4, 4))
    )
    twins = prefixed("left.", weights) | prefixed("on.right.", zeros_like(weights))
    assert "several networks (left, on.right)" in refusal(twins)


def without(weights: State, *names: str) -> State:
    return {name: value for name, value in weights.items() if name not in names}


def test_a_layer_of_another_width_is_said(resnet_weights: State, tmp_path: Path):
    wide = resnet_weights | {"layer2.0.conv2.weight": torch.zeros(256, 256, 3, 3)}
    moco(wide, tmp_path / "w")
    with pytest.raises(UserError, match=r"layer2.0.conv2.weight is 256×256×3×3 there, 128×128×3×3"):
        open_backbone(str(tmp_path / "w"))
    moco(without(resnet_weights, "bn1.running_mean"), tmp_path / "w")
    with pytest.raises(UserError, match=r"lacks bn1.running_mean"):
        open_backbone(str(tmp_path / "w"))


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("blocks.0.mlp.fc1.weight", (), "a network of impossible shapes"),
        ("register_tokens", (4,), "a network of impossible shapes"),
        ("reg_token", (4,), "a network of impossible shapes"),
        ("patch_embed.proj.weight", (0, 3, 16, 16), "16×16 px into 0 numbers"),
        ("patch_embed.proj.weight", (384, 3, 0, 0), "0×0 px into 384 numbers"),
        (f"blocks.{'9' * 5000}.norm1.weight", (1,), "a network of impossible shapes"),
        ("blocks.30000000.norm1.weight", (1,), "no 30,000,001 blocks"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_impossible_shapes(name: str, shape: tuple[int, ...], said: str, vit: Any):
    assert said in refusal(vit.state_dict() | {name: torch.zeros(shape)})


def test_a_network_takes_no_more_room_than_its_file(vit: Any, tmp_path: Path):
    """A few bytes, expanded, would be a network that fills the memory."""
    weights = dict(vit.state_dict())
    wide = torch.zeros(()).expand(64 * 10**7, 3, 16, 16)
    assert "larger than what the file holds" in refusal(weights | {"patch_embed.proj.weight": wide})
    qkv = weights["blocks.0.attn.qkv.weight"]
    tied = {name: qkv[:384] for name in weights if name.endswith("attn.proj.weight")}
    several = {name: qkv for name in weights if name.endswith("attn.qkv.weight")}
    assert "larger than what the file holds" in refusal(weights | tied | several)
    torch.save(weights | {"patch_embed.proj.weight": wide}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="larger than what the file holds"):
        open_backbone(f"timm:vit_small_patch16_224@{tmp_path / 'w.pth'}", image_px=64)


def test_weights_that_are_not_finite(vit: Any):
    broken = {name: value * torch.nan for name, value in vit.state_dict().items()}
    assert "weights that are not finite" in refusal(broken)
    both = prefixed("backbone.", broken) | prefixed("net.backbone.", broken)
    assert "weights that are not finite" in refusal(both)
    infinite = dict(vit.state_dict()) | {"cls_token": torch.full((1, 1, 384), torch.inf)}
    assert "not finite, in 1 of" in refusal(infinite)


def test_complex_numbers_are_no_weights(vit: Any):
    odd = {name: value.to(torch.complex64) for name, value in vit.state_dict().items()}
    assert "holds complex numbers" in refusal(odd)
