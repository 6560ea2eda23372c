"""Whatever is wrong with weights or a request, the user reads one line, and nothing is written."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.layers.mlp import GluMlp, SwiGLUPacked
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.weights import onnx
from croc.weights.files import read_metadata
from croc.weights.init import load_into
from croc.weights.open import describe_file
from croc.weights.transformers import convert
from tests.refusals import check_refusal
from tests.weights.conftest import make_file

TINY = ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere --to timm --folder a/b", "RUN nowhere: no such run or file"),
        ("random:vit_tiny_patch16_224 --to onnx", "is not a run"),
        ("other.safetensors --to timm", "contains no ViT or ResNet"),
        ("RUN --to tim", "pass timm, transformers, onnx, or a file"),
        ("RUN --to a.safetensors --name a", "--name only apply to"),
        ("RUN --to onnx --dtype bfloat16", "written in float32"),
        ("RUN --to timm --name a/b", "--name 'a/b': pass a name"),
        ("RUN --to timm --scores nowhere", "nowhere"),
        ("RUN --to timm --scores results.jsonl", "has no scores of these weights"),
        (
            "RUN --to other.safetensors",
            "other.safetensors already exists and will not be overwritten",
        ),
        ("RUN --to card.safetensors", "card.md already exists and will not be overwritten"),
        ("RUN --to timm --folder empty", "empty already exists and will not be overwritten"),
        ("RUN --to onnx --folder link", "link already exists"),
        ("RUN --to timm --name taken", "taken-timm already exists"),
    ],
)
def test_export(arguments: str, message: str, run: Path, capsys: pytest.CaptureFixture[str]):
    save_file({"a": torch.zeros(1)}, "other.safetensors")
    Path("card.md").touch()
    Path("empty").mkdir()
    Path("taken-timm").mkdir()
    Path("link").symlink_to("nowhere")
    Path("results.jsonl").write_text(json.dumps({"weights_hash": "0" * 16}) + "\n[1]\n")
    check_refusal(capsys, ["export", *arguments.replace("RUN", str(run)).split()], message)


def test_export_without_onnx(run: Path, monkeypatch, capsys):
    monkeypatch.setattr(onnx, "find_spec", lambda x: None if x == "onnxscript" else find_spec(x))
    check_refusal(capsys, ["export", str(run), "--to", "onnx"], "pip install 'croc[onnx]'")


def test_networks_that_transformers_lacks(here: Path, capsys):
    file = make_file(here / "a.safetensors", "eva02_tiny_patch14_224")
    message = "eva02_tiny_patch14_224 has no equivalent in transformers (supported: "
    check_refusal(capsys, ["export", str(file), "--to", "transformers"], message)


PLAIN: dict[str, Any] = {"embed_dim": 64, "depth": 1, "num_heads": 2, "num_classes": 0}
PLAIN |= {"dynamic_img_size": True}
ROTARY = {"global_pool": "token", "init_values": 1.0, "num_reg_tokens": 4, "rope_type": "dinov3"}
ROTARY |= {"use_abs_pos_emb": False, "use_rot_pos_emb": True, "rope_rotate_half": True}


@pytest.mark.parametrize(
    "change",
    [
        *({"qk_norm": True}, {"pre_norm": True}, {"proj_bias": False}, {"reg_tokens": 4}),
        *({"act_layer": "gelu_tanh"}, {"final_norm": False}, {"pos_embed": "none"}),
        *({"mlp_layer": SwiGLUPacked}, {"init_values": 1.0, "mlp_ratio": 2.5}),
        *({"no_embed_class": True}, {"init_values": 1.0, "mlp_layer": GluMlp}),
        {"init_values": 1.0, "mlp_layer": SwiGLUPacked, "mlp_ratio": 3},
        *(
            ROTARY | {"qk_norm": True},
            ROTARY | {"init_values": None},
            ROTARY | {"rope_type": "cat"},
        ),
        *(ROTARY | {"rope_type": "mixed"}, ROTARY | {"rope_rotate_half": False}),
        *(ROTARY | {"rope_grid_offset": 0.5}, ROTARY | {"qkv_fused": False}),
        *(ROTARY | {"use_abs_pos_emb": True}, ROTARY | {"swiglu_mlp": True, "scale_mlp": True}),
        *(ROTARY | {"use_post_norm": True}, ROTARY | {"attn_only_layer_scale": True}),
    ],
    ids=str,
)
def test_vits_that_transformers_lacks(change: dict[str, Any]):
    is_rotary = "rope_type" in change
    make: Any = Eva if is_rotary else VisionTransformer
    plain, changed = make(**PLAIN, **(ROTARY if is_rotary else {})), make(**PLAIN, **change)
    convert(plain, plain.state_dict(), "mine")
    with pytest.raises(UserError, match="mine has no equivalent in transformers"):
        convert(changed, changed.state_dict(), "mine")


def test_files_with_impossible_content(bundled: Path):
    """Metadata and tensors that a stranger changed; unknown metadata, as of earlier versions, are
    ignored, and control characters are not printed."""
    path = bundled / "small-a.safetensors"
    tensors, record = load_file(path), json.loads(read_metadata(path)["croc"])
    changes: list[tuple[dict[str, Any], str]] = [
        ({"model": "vit_nosuch"}, "timm has no model 'vit_nosuch'"),
        ({"model": "resnet50"}, "not a ViT"),
        ({"model": "vit_giant_patch14_224"}, "does not fit"),
        ({"model": 7}, "cannot be read"),
        ({"depth": 10**9}, "impossible size"),
        ({"depth": 1}, 'does not fit: Unexpected key(s) in state_dict: "blocks.1'),
        ({"patch_px": 16}, "does not fit"),
        ({"image_px": 10**6}, "impossible size"),
        ({"image_px": 8 * 257}, "[257, 257] patches: at most 256 a side"),
        ({"image_px": 33}, "not a whole number of"),
        ({"format": 2}, "format 2, this version reads 1"),
    ]
    cases = [(json.dumps(record | change), {}, message) for change, message in changes]
    cases += [(text, {}, "cannot be read") for text in ("", "[]", "null", "[" * 100_000, "{}")]
    cases += [
        (json.dumps(record), {"head.weight": torch.zeros(2)}, "head.weight"),
        (json.dumps(record), {"cls_token": torch.full((1, 1, 192), torch.nan)}, "non-finite"),
        (json.dumps(record), {"cls_token": torch.zeros(1, 1, 3)}, "size mismatch for cls_token"),
    ]
    for text, more, message in cases:
        save_file(tensors | more, path, {"croc": text})
        with pytest.raises(UserError, match=re.escape(message)) as refused:
            describe_file(path)
        assert str(path) in str(refused.value)
    record |= {"context": 0.5, "data": ["a\x1b[31m"]}
    save_file(tensors, path, {"croc": json.dumps(record)})
    assert not any("\x1b" in line for line in describe_file(path))


@pytest.mark.parametrize("file", ["cut.safetensors", "empty.safetensors", "empty.pth", ".", "no"])
def test_show_weights(file: str, bundled: Path, capsys: pytest.CaptureFixture[str]):
    whole = (bundled / "small-a.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(whole[:5000])
    Path("empty.safetensors").touch()
    Path("empty.pth").touch()
    check_refusal(capsys, ["show", "weights", file], file.strip("."))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("r18.pth", "r18 is a ConvNet"),
        ("list.pth", "contains a list, not named tensors"),
        ("object.pth", r"Linear, not named tensors: save its state_dict\(\)"),
        ("random:vit_tiny_patch16_224", "leave --init out"),
        ("nowhere", r"^--init nowhere: no such run or file"),
        ("", "^--init : no such run or file"),
        ("timm:vit_tin", "timm has no model 'vit_tin'; did you mean gcvit_tiny"),
        ("timm:vit_tiny_patch16_224@nowhere.pth", "No such file"),
        ("timm:vit_tiny_patch16_224@r18.pth", "the file does not fit|the file lacks"),
        ("RUN/config.json", "name the run's folder"),
    ],
)
def test_init(spec: str, message: str, run: Path):
    torch.save(timm.create_model("resnet18").state_dict(), "r18.pth")
    torch.save([1, 2], "list.pth")
    torch.save(torch.nn.Linear(2, 2), "object.pth")
    with pytest.raises(UserError, match=message) as refused:
        load_into(Backbone(TINY, 32), spec.replace("RUN", str(run)))
    assert "--weights" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 384, "num_heads": 6, "depth": 3}, "width 384, not 192, depth 3, not 2"),
        ({"patch_size": 16}, "patches of 16 px, not 8 px"),
        ({"patch_size": 64, "img_size": 64}, "does not fit"),
        ({"init_values": 1.0}, "does not fit: .*ls1.gamma"),
        ({"reg_tokens": 4}, "registers 4, not 0"),
        ({"mlp_ratio": 2.0}, "does not fit: .*fc1.weight"),
        ({"class_token": False, "global_pool": "avg"}, "class token False, not True"),
        ({"no_embed_class": True}, "a position for the class token False, not True"),
    ],
    ids=str,
)
def test_init_from_another_architecture(options: dict[str, Any], message: str):
    tiny: dict[str, Any] = {"patch_size": 8, "depth": 2, "img_size": 32}
    vit: Any = timm.create_model(TINY.name, **(tiny | options))
    torch.save(vit.state_dict(), "w.pth")
    with pytest.raises(UserError, match=message):
        load_into(Backbone(TINY, 32), "w.pth")


def test_a_full_disk_leaves_nothing(run: Path, monkeypatch, capsys):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    for to in ("timm", "transformers", "a.safetensors"):
        check_refusal(capsys, ["export", str(run), "--to", to], "No space left")
