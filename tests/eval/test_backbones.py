"""Backbones for evaluation: from a run, from timm, by name; features against timm's own."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from croc.config import read_config, write_config
from croc.errors import UserError
from croc.method.croc import Croc
from croc.method.mae import Mae
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.open import DenseBackbone, VitBackbone, fingerprint, open_backbone
from tests.tiny import tiny_config, tiny_mae


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
    ("spec", "message"),
    [
        ("nowhere", "--weights nowhere: no such run or file; .* random:NAME"),
        ("random:resnet5", "near to it: resnet5"),
        ("random:vit_tiny_patch16_224@w.pth", "takes no file"),
        ("random:mixer_b16_224", "gives no feature map"),
    ],
)
def test_bad_names(spec: str, message: str):
    with pytest.raises(UserError, match=message):
        open_backbone(spec)


def test_a_run_before_its_first_step(run: Path):
    untrained, trained = open_backbone(f"random:{run}"), open_backbone(str(run))
    assert fingerprint(untrained) != fingerprint(trained)
    assert untrained.name == "tiny@0"
    config, _ = read_config(run / "config.json")
    torch.manual_seed(config.run.seed)
    started = Croc(config, torch.device("cpu")).student.backbone.vit.state_dict()
    for name, value in started.items():
        assert torch.equal(value, untrained.state_dict()[f"vit.{name}"])
    shapes = [{k: v.shape for k, v in each.state_dict().items()} for each in (untrained, trained)]
    assert shapes[0] == shapes[1]


def test_a_run_of_mae_before_its_first_step(tmp_path: Path):
    config = tiny_mae()
    write_config(tmp_path, config, "tiny")
    torch.manual_seed(config.run.seed)
    started = Mae(config, torch.device("cpu")).student.backbone.vit.state_dict()
    untrained = open_backbone(f"random:{tmp_path}").state_dict()
    for name, value in started.items():
        assert torch.equal(value, untrained[f"vit.{name}"])


def test_of_a_method_without_a_teacher_the_student_is_evaluated(run: Path, tmp_path: Path):
    state = load_checkpoint(checkpoints(run)[-1])
    student = state["modules"]["student"]
    state["modules"] = {"student": student}
    torch.save(state, tmp_path / "step-00000003.pt")
    shutil.copy(run / "config.json", tmp_path)
    backbone = open_backbone(str(tmp_path / "step-00000003.pt"))
    ours = backbone.state_dict()["vit.patch_embed.proj.weight"]
    assert torch.equal(ours, student["backbone.vit.patch_embed.proj.weight"])
    assert backbone.origin.endswith("@3, the student")


def test_a_checkpoint_without_its_configuration(run: Path, tmp_path: Path):
    """The layout of ours is recognised as well."""
    alone = shutil.copy(checkpoints(run)[-1], tmp_path)
    images = torch.randn(1, 3, 32, 32)
    found, expected = open_backbone(alone, image_px=32), open_backbone(str(run))
    torch.testing.assert_close(found.features(images), expected.features(images))


@pytest.mark.parametrize(("name", "head"), [("vit_tiny_patch16_224", "head"), ("resnet18", "fc")])
@pytest.mark.parametrize("layout", ["wrapped", "safetensors"])
def test_weights_of_a_file(name: str, head: str, layout: str, tmp_path: Path):
    model = timm.create_model(name, num_classes=7)
    weights = model.state_dict()
    path = tmp_path / ("w.safetensors" if layout == "safetensors" else "w.pth")
    if layout == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"model": weights, "epoch": 3}, path)
    backbone = open_backbone(f"timm:{name}@{path}", image_px=224)
    images = torch.randn(1, 3, 224, 224)
    model.eval()
    if head == "head":
        expected = model.forward_features(images)[:, 1:].mT.reshape(1, 192, 14, 14)  # pyright: ignore
        torch.testing.assert_close(backbone.features(images), expected)
    bare = {key: value for key, value in weights.items() if not key.startswith(head)}
    torch.save(bare, tmp_path / "bare.pth")
    same = open_backbone(f"timm:{name}@{tmp_path / 'bare.pth'}", image_px=224)
    torch.testing.assert_close(same.features(images), backbone.features(images))


def test_files_that_do_not_fit(tmp_path: Path):
    weights = timm.create_model("vit_tiny_patch16_224").state_dict()
    cases = {
        "half.pth": ({k: v for k, v in weights.items() if "blocks.11" not in k}, "lacks 12 of"),
        "other.pth": ({"encoder.weight": torch.zeros(3)}, "lacks 150 of .* it has encoder.weight"),
        "wide.pth": (timm.create_model("vit_small_patch16_224").state_dict(), "does not fit"),
        "list.pth": ([1, 2], "holds no named tensors"),
        "hostile.pth": (Hostile(tmp_path / "ran"), "cannot be read as weights"),
    }
    for name, (content, said) in cases.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(UserError, match=said):
            open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / name}")
    for name in ("cut.pth", "cut.safetensors", "empty.pth"):
        (tmp_path / name).write_bytes(b"" if name == "empty.pth" else b"PK\3\4 and no more")
        with pytest.raises(UserError, match="cannot be read as weights"):
            open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / name}")
    with pytest.raises(UserError, match="holds no run"):
        open_backbone(str(tmp_path))
    with pytest.raises(UserError, match=r"no ViT and no ResNet .* first keys: encoder.weight"):
        open_backbone(str(tmp_path / "other.pth"))
    assert not (tmp_path / "ran").exists()


class Hostile:
    """Unpickled without care it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_vit_made_for_pooled_tokens_norms_its_patches_too():
    backbone = open_backbone("random:vit_little_patch16_reg4_gap_256", image_px=64)
    features = backbone.features(torch.randn(1, 3, 64, 64))
    torch.testing.assert_close(features.mean(dim=1), torch.zeros(1, 4, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(dim=1), torch.ones(1, 4, 4), atol=1e-2, rtol=0)
