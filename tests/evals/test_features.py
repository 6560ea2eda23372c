"""Backbones for evaluation: from a run, from timm, by name; features against timm's own."""

import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import croc.eval
from croc.errors import UserError
from croc.eval.features import DenseBackbone, VitBackbone, fingerprint, open_backbone
from croc.method.croc import Croc
from croc.method.mae import Mae
from croc.train.checkpoint import checkpoints, load_checkpoint
from croc.train.loop import pretrain
from croc.train.run_folder import read_config, write_config
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
    ("spec", "said"),
    [
        ("nowhere", "--weights nowhere: no such run or file; .* random:NAME"),
        (" ", "--weights names nothing"),
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
    with pytest.raises(UserError, match="cannot be read as weights"):
        open_backbone(str(tmp_path / "weights.pt"))
    torch.save({"fc.weight": torch.zeros(3)}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match=r"no ViT and no ResNet .* first keys: fc.weight"):
        open_backbone(str(tmp_path / "weights.pt"))


def test_a_config_of_others_beside_a_file_is_not_read(tmp_path: Path):
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "model.bin")
    (tmp_path / "config.json").write_text('{"architecture": "resnet18"}')
    assert open_backbone(str(tmp_path / "model.bin")).name == "model"
    (tmp_path / "config.json").write_text("[1, ")
    assert open_backbone(str(tmp_path / "model.bin")).name == "model"


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


@pytest.mark.parametrize("student", [[1], {3: torch.zeros(1)}, {}, {"backbone.vit.norm": 1}])
def test_a_checkpoint_with_wrong_insides(student: object, run: Path, tmp_path: Path):
    state = load_checkpoint(checkpoints(run)[-1])
    state["modules"] = {"student": student}
    torch.save(state, tmp_path / "step-00000003.pt")
    shutil.copy(run / "config.json", tmp_path)
    with pytest.raises(UserError, match=r"named tensors for its student|does not fit"):
        open_backbone(str(tmp_path / "step-00000003.pt"))


def test_a_broken_checkpoint_is_not_to_be_removed(run: Path, tmp_path: Path):
    shutil.copy(run / "config.json", tmp_path)
    torch.save({"format": 2, "step": 1}, tmp_path / "part.pt")
    (tmp_path / "broken.pt").write_bytes(b"?")
    torch.save([1], tmp_path / "list.pt")
    for name in ("part.pt", "broken.pt", "list.pt", "config.json"):
        with pytest.raises(UserError, match="name the run's folder or another") as refused:
            open_backbone(str(tmp_path / name))
        assert "remove" not in str(refused.value)


def test_a_checkpoint_without_its_configuration(run: Path, tmp_path: Path):
    """The layout of ours is recognised as well."""
    alone = shutil.copy(checkpoints(run)[-1], tmp_path)
    images = torch.randn(1, 3, 32, 32)
    found, expected = open_backbone(alone, image_px=32), open_backbone(str(run))
    torch.testing.assert_close(found.features(images), expected.features(images))


def test_a_checkpoint_beside_its_configuration(run: Path, tmp_path: Path):
    copies = [shutil.copy(path, tmp_path) for path in (checkpoints(run)[-1], run / "config.json")]
    assert fingerprint(open_backbone(copies[0])) == fingerprint(open_backbone(str(run)))


@pytest.mark.parametrize(("name", "head"), [("vit_tiny_patch16_224", "head"), ("resnet18", "fc")])
@pytest.mark.parametrize("layout", ["plain", "wrapped", "safetensors"])
def test_weights_of_a_file(name: str, head: str, layout: str, tmp_path: Path):
    model = timm.create_model(name, num_classes=7)
    weights = model.state_dict()
    path = tmp_path / ("w.safetensors" if layout == "safetensors" else "w.pth")
    if layout == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"model": weights, "epoch": 3} if layout == "wrapped" else weights, path)
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
    with pytest.raises(UserError, match="there is no file"):
        open_backbone(f"timm:vit_tiny_patch16_224@{tmp_path / 'nowhere.pth'}")
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


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_features_have_the_weights_precision(name: str):
    backbone = open_backbone(f"random:{name}", image_px=64)
    images = torch.randn(1, 3, 64, 64)
    single = backbone.features(images)
    double = backbone.to(torch.float64).features(images)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, atol=1e-4, rtol=1e-4)


def test_evaluation_does_not_import_training():
    """It must load and score weights where nothing is trained."""
    modules = [each.name for each in pkgutil.iter_modules(croc.eval.__path__, "croc.eval.")]
    assert "croc.eval.evaluate" in modules
    modules += ["croc.lab.show.predictions", "croc.lab.show.overlays"]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert set(modules) <= set(imported)
    training = ("croc.train.loop", "croc.train.watch", "croc.method.build", "croc.method.croc")
    assert not {*training, "croc.method.mae"} & set(imported)
