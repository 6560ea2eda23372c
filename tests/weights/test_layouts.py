"""Every project's layout, written as that project does: recognized, and the features are equal."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.weights.backbones import VitBackbone, fingerprint
from croc.weights.files import read_named_tensors
from croc.weights.init import load_into
from croc.weights.layouts import recognize
from croc.weights.open import open_backbone
from tests.weights.projects import (
    FOUNDATIONS,
    RESNETS,
    SAVED,
    VITS,
    State,
    dinov2,
    dinov3,
    eva02,
    moco,
    other,
    prefixed,
    save_zip,
    zeros,
)

SMALL: dict[str, Any] = {"depth": 2, "img_size": 64, "num_classes": 0, "dynamic_img_size": True}
IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}

Make = Callable[[str], Any]


def randomized(network: nn.Module) -> nn.Module:
    """No tensor has its initial value, so that one that is not loaded shows."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, value in network.state_dict().items():
            if not value.is_floating_point():
                continue
            drawn = torch.randn_like(value)
            near_one = name.endswith("running_var") or (value.ndim == 1 and "weight" in name)
            value.copy_(1 + 0.1 * drawn.clamp(-3, 3) if near_one else 0.05 * drawn)
    return network.eval()


def without(weights: State, name: str) -> State:
    return {key: value for key, value in weights.items() if not key.startswith(name)}


@pytest.fixture(scope="module")
def vit() -> Any:
    return randomized(timm.create_model("vit_small_patch16_224", **SMALL))


@pytest.fixture(scope="module")
def resnet() -> Any:
    dilated = [False, False, True]
    return randomized(torchvision.models.resnet50(replace_stride_with_dilation=dilated))


@pytest.fixture(scope="module")
def resnet_weights(resnet: Any) -> State:
    return without(resnet.state_dict(), "fc.")


@torch.no_grad()
def vit_features(vit: Any, images: Tensor) -> Tensor:
    tokens = vit.forward_features(images)[:, vit.num_prefix_tokens :]
    return tokens.mT.unflatten(2, (4, 4))


@pytest.mark.parametrize("project", VITS)
def test_vits(project: str, vit: Any, tmp_path: Path):
    """Read for evaluation, and as the start of a run; CP²'s has no final norm."""
    weights, is_cp2 = dict(vit.state_dict()), project == "cp2"
    if is_cp2:
        weights = without(weights, "norm.")
    path = tmp_path / "a.b"  # the name must not help
    SAVED.get(project, save_zip)(VITS[project](weights), path)
    backbone = open_backbone(str(path))
    norm, vit.norm = vit.norm, nn.Identity() if is_cp2 else vit.norm
    expected = vit_features(vit, IMAGES)
    vit.norm = norm
    torch.testing.assert_close(backbone.features(IMAGES), expected, **CLOSE)
    assert backbone.vit.blocks[0].attn.num_heads == 6

    started = Backbone(ModelConfig("vit_small_patch16_224", depth=2), 64)
    assert ("no final norm" in load_into(started, str(path))) == is_cp2
    for name, value in started.vit.state_dict().items():
        if name in weights:
            assert torch.equal(value, weights[name])
        else:
            assert value.unique().tolist() in ([0.0], [1.0])
    assert all(parameter.requires_grad for parameter in started.parameters())


@pytest.mark.parametrize("project", RESNETS)
def test_resnets(project: str, resnet: Any, resnet_weights: State, tmp_path: Path):
    SAVED.get(project, save_zip)(RESNETS[project](resnet_weights), tmp_path / "a.b")
    recognized = recognize(read_named_tensors(tmp_path / "a.b"))
    assert recognized.architecture == "resnet50"
    for name, value in resnet_weights.items():
        if "num_batches_tracked" not in name:
            assert torch.equal(recognized.weights[name], value), name
    if project != "moco":
        return
    backbone = open_backbone(str(tmp_path / "a.b"))
    stages = torchvision.models.feature_extraction.create_feature_extractor(resnet, ["layer4"])
    with torch.no_grad():
        torch.testing.assert_close(backbone.features(IMAGES), stages(IMAGES)["layer4"], **CLOSE)


@pytest.fixture(scope="module")
def make_vit() -> Make:
    """timm's network of a name, with one or two blocks and final norm instead of fc_norm."""

    @cache
    def make(name: str) -> Any:
        options = SMALL | {"img_size": 64 if "patch16" in name else 56, "global_pool": "token"}
        return randomized(timm.create_model(name, **options | {"depth": 1 + ("giant" not in name)}))

    return make


@pytest.mark.parametrize("project", FOUNDATIONS)
def test_foundation_models(project: str, make_vit: Make, tmp_path: Path):
    """Features equal those of timm's own network; so does the file of it; a run starts from it."""
    name, content = FOUNDATIONS[project]
    vit = make_vit(name)
    torch.save(content(vit.state_dict()), tmp_path / "a.b")
    px = vit.patch_embed.img_size[0]
    backbone = open_backbone(str(tmp_path / "a.b"))
    images = torch.randn(1, 3, px, px)
    torch.testing.assert_close(backbone.features(images), vit_features(vit, images), **CLOSE)

    torch.save(backbone.vit.state_dict(), tmp_path / "again.b")
    again = open_backbone(str(tmp_path / "again.b"))
    assert fingerprint(again) == fingerprint(backbone)
    started = Backbone(ModelConfig(name, depth=len(vit.blocks)), px)
    load_into(started, str(tmp_path / "a.b"))
    torch.testing.assert_close(started.vit.state_dict(), vit.state_dict(), atol=1e-6, rtol=0)


TINY: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
}
VIT, DINOV2 = transformers.ViTModel, transformers.Dinov2Model
REGISTERS, DINOV3 = transformers.Dinov2WithRegistersModel, transformers.DINOv3ViTModel


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (VIT, {"intermediate_size": 512}),
        (DINOV2, {}),
        (DINOV2, {"use_swiglu_ffn": True}),
        (REGISTERS, {"num_register_tokens": 4}),
        (DINOV3, {"num_register_tokens": 4}),
        (
            DINOV3,
            {"num_register_tokens": 4, "use_gated_mlp": True, "query_bias": False}
            | {"value_bias": False, "intermediate_size": 392, "hidden_act": "silu"},
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_files_of_transformers(model: Any, options: dict[str, Any], tmp_path: Path):
    """As published, and under the names of transformers 5; features equal the library's own."""
    network = randomized(model(model.config_class(**TINY, **options)))
    network.save_pretrained(tmp_path)
    with torch.no_grad():
        tokens = network(IMAGES).last_hidden_state[:, -16:]
    states = {"published": tmp_path / "model.safetensors", "5": tmp_path / "w.pth"}
    torch.save({"model": prefixed("vit.", network.state_dict())}, states["5"])
    for path in states.values():
        backbone = open_backbone(str(path))
        features = backbone.features(IMAGES)
        torch.testing.assert_close(features, tokens.mT.unflatten(2, (4, 4)), **CLOSE)


@pytest.mark.parametrize(
    "name",
    [
        *(f"vit_{size}_patch14_{kind}" for size in ("small", "base", "large", "giant")
          for kind in ("dinov2", "reg4_dinov2")),
        *(f"vit_{size}_patch16_dinov3" for size in ("small", "small_plus", "base", "large")),
        *("vit_huge_plus_patch16_dinov3", "vit_7b_patch16_dinov3"),
        *(f"eva02_{size}_patch14_224" for size in ("tiny", "small", "base", "large")),
    ],
)  # fmt: skip
def test_all_sizes_of_foundation_models(name: str):
    """The network is timm's own of that name; without its numbers, of which one block is enough."""
    content = dinov2 if "dinov2" in name else dinov3 if "dinov3" in name else eva02
    options: dict[str, Any] = {"depth": 1, "num_classes": 0, "global_pool": "token"}
    with torch.device("meta"):
        vit: Any = timm.create_model(name, **options)
    weights = {name: torch.zeros(value.shape) for name, value in vit.state_dict().items()}
    recognized = recognize(content(weights))
    with torch.device("meta"):
        ours: Any = timm.create_model(recognized.architecture, num_classes=0, **recognized.options)
    assert str(ours) == str(vit)
    for part in ("num_heads", "rotate_half", "num_prefix_tokens", "scale"):
        attentions = [network.blocks[0].attn for network in (vit, ours)]
        assert len({getattr(attention, part, None) for attention in attentions}) == 1
    if "dinov3" in name:
        assert recognized.architecture == name


def test_a_file_equals_its_model_by_name(tmp_path: Path):
    """Also with positions of 6×6, which are resampled once, at most; and in wrappers."""
    whole: Any = randomized(timm.create_model("vit_tiny_patch16_224", img_size=96))
    images = torch.randn(1, 3, 96, 96)
    expected = whole.forward_features(images)[:, 1:].mT.unflatten(2, (6, 6))
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    wrapped = {"model": whole.state_dict(), "model_ema": whole.state_dict()}
    wrapped["model"] = other(wrapped["model"])
    torch.save({"state_dict": wrapped}, tmp_path / "wrapped.pth")
    by_file = open_backbone(str(tmp_path / "w.pth"))
    for file in ("w.pth", "wrapped.pth"):
        by_name = open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / file}")
        torch.testing.assert_close(by_name.features(images), expected)
        for other_size in (IMAGES, torch.randn(1, 3, 64, 128)):
            torch.testing.assert_close(
                by_file.features(other_size, 2), by_name.features(other_size, 2)
            )


@pytest.mark.parametrize(
    "options",
    [
        {"qkv_bias": False, "mlp_ratio": 2.0},
        {"init_values": 0.1, "patch_size": 8, "img_size": 32},
        {"class_token": False, "global_pool": "avg"},
        {"reg_tokens": 4, "embed_dim": 256, "num_heads": 4},
        {"reg_tokens": 4, "no_embed_class": True},
    ],
    ids=str,
)
def test_options_are_read_off_shapes(options: dict[str, Any], tmp_path: Path):
    vit: Any = randomized(timm.create_model("vit_tiny_patch16_224", **(SMALL | options)))
    torch.save({"net": prefixed("vit.", vit.state_dict())}, tmp_path / "w.pth")
    backbone = open_backbone(str(tmp_path / "w.pth"))
    expected = VitBackbone(vit, "vit").features(IMAGES)
    torch.testing.assert_close(backbone.features(IMAGES), expected, **CLOSE)


@pytest.mark.parametrize("size", ["tiny", "so400m", "huge", "giant", "giantopt", "gigantic"])
def test_heads_are_those_of_timms_vits_of_that_width(size: str):
    name = next(x for x in timm.list_models(f"vit_{size}_patch*") if "clip" not in x)
    with torch.device("meta"):
        vit: Any = timm.create_model(name, depth=1, img_size=56 if "14" in name else 64)
    weights = {name: torch.zeros(value.shape) for name, value in vit.state_dict().items()}
    options = recognize(weights).options
    assert options["num_heads"] == vit.blocks[0].attn.num_heads
    hidden = int(options["embed_dim"] * options["mlp_ratio"])
    assert hidden == vit.blocks[0].mlp.fc1.out_features


def test_choices_by_name_and_depth(vit: Any):
    """MoCo v3's small ViT has narrower heads; an averaged network comes first."""
    weights = dict(vit.state_dict())
    assert recognize(prefixed("module.base_encoder.", weights)).options["num_heads"] == 12
    recognized = recognize(prefixed("model.", other(weights)) | prefixed("model_ema.", weights))
    assert recognized.layout.endswith("from model_ema")
    assert torch.equal(recognized.weights["pos_embed"], weights["pos_embed"])
    for name in ("resnet18", "resnet34", "resnet101"):
        assert recognize(timm.create_model(name).state_dict()).architecture == name


def test_unknown_networks_are_refused(vit: Any, resnet_weights: State):
    weights = dict(vit.state_dict())
    broken = {name: value * torch.nan for name, value in weights.items()}
    expanded = torch.zeros(()).expand(64 * 10**7, 3, 16, 16)
    narrow, tall = torch.zeros(100, 3, 16, 16), torch.zeros(384, 3, 16, 8)
    patches = {name: x for name, x in weights.items() if name.startswith("patch_embed")}
    wide = {"layer2.0.conv2.weight": torch.zeros(256, 256, 3, 3)}
    cases: list[tuple[State, str]] = [
        (zeros("features.0.weight"), "no ViT or ResNet .* first keys: features.0.weight"),
        ({}, "first keys: none"),
        (weights | zeros("blocks.0.attn.q_norm.weight"), "unexpected tensor .*q_norm.weight"),
        (without(weights, "pos_embed"), "cannot infer the architecture of .*pos_embed"),
        (without(weights, "blocks.0.mlp.fc1"), r"mlp\.fc1\.weight"),
        (weights | zeros("pos_embed", shape=(1, 18, 384)), "embeddings are not a square"),
        (weights | zeros("reg_token", shape=(4,)), "cannot infer the architecture|non-standard"),
        (weights | {"patch_embed.proj.weight": narrow}, "width of 100 .*timm:NAME@"),
        (weights | {"patch_embed.proj.weight": expanded}, "larger than the file"),
        (weights | {"patch_embed.proj.weight": tall}, "no ViT or ResNet in a known layout"),
        (weights | zeros("blocks.30000000.norm1.weight"), "unexpected tensor blocks.30000000"),
        (moco(resnet_weights | wide)["state_dict"], "does not fit: .*layer2.0.conv2.weight"),
        (without(resnet_weights, "bn1.running_mean"), "does not fit: .*bn1.running_mean"),
        (without(resnet_weights, "layer4"), r"\(3, 4, 6, 0\) blocks"),
        (resnet_weights | zeros("layer1.0.se.fc1.weight"), "layer1.0.se.fc1.weight"),
        (prefixed("left.", weights) | prefixed("on.right.", other(weights)), "left, on.right"),
        (prefixed("a.", weights) | prefixed("b.", other(weights) | patches), "several .*a, b"),
        (prefixed("backbone.", broken) | prefixed("net.backbone.", broken), "non-finite"),
    ]
    for tensors, message in cases:
        with pytest.raises(UserError, match=message):
            recognize(tensors, "w.pth")
