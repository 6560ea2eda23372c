"""Files are read and never run, whatever they contain; what does not fit is refused."""

import json
import os
import re
from argparse import Namespace
from collections import OrderedDict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
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
from croc.weights.files import read_arguments, read_content, read_metadata, read_named_tensors
from croc.weights.init import load_into
from croc.weights.open import describe_file
from croc.weights.transformers import convert
from tests.refusals import check_refusal
from tests.weights.projects import SAVES, Save

saves = pytest.mark.parametrize("save", SAVES)


class Call:
    """Unpickled without care, it calls a function that leaves a file."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def places(hostile: Any) -> dict[str, Any]:
    return {
        "alone": hostile,
        "arguments": {"model": {"a": np.zeros(3)}, "args": Namespace(seed=hostile)},
        "tensor": {"model": {"patch_embed.proj.weight": hostile}},
        "wrapper": {"teacher": OrderedDict(inner=[hostile]), "epoch": 3},
        "key": {"model": {("a", hostile): 1}},
    }


@saves
@pytest.mark.parametrize("place", places(None))
def test_nothing_in_a_file_is_run(save: Save, place: str, tmp_path: Path):
    """What could do harm is refused by name; whatever else is called becomes a passive record."""
    left, path = tmp_path / "ran", tmp_path / "w.pth"
    for call, is_harmful in (
        (Call(os.system, f"touch {left}"), True),
        (Call(eval, f"open({str(left)!r}, 'w')"), True),
        (Call(np.savetxt, left, [1.0]), False),
        (Call(torch.save, 1, left), False),
        (Call(Path.touch, left), False),
    ):
        save(places(call)[place], path)
        for read in (read_content, read_named_tensors, read_arguments):
            refused = pytest.raises(UserError, match=r"it tries to run .* do not use this file")
            with refused if is_harmful else suppress(UserError):
                read(path)
    assert not left.exists()


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    "code",
    [
        opcodes(b"c_codecs\nencode\n", b"(N}K\x01K\x02stb"),  # a state for a function
        opcodes(b"cargparse\nNamespace\n", b"}b"),  # a state for a class
        opcodes(b"cnumpy\ndtype\n", b"X\x01\x00\x00\x00O\x85R", b"b"),
        opcodes(b"(X\x07\x00\x00\x00storageK\x01K\x02K\x03K\x04tQ"),
        opcodes(b"\x82\x07"),  # an extension
        opcodes(b"R"),
        b"(S'touch x'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch x'\no.",
    ],
)
def test_pickles_written_by_hand(code: bytes, tmp_path: Path):
    (tmp_path / "w.pkl").write_bytes(code)
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_content(tmp_path / "w.pkl")


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path):
    (tmp_path / "w.pkl").write_bytes(b"\x80\x04\x8c\x02os\x8c\x08a\x1b[2J\nb\n\x93.")
    with pytest.raises(UserError, match=r"tries to run os.a \[2J b,"):
        read_content(tmp_path / "w.pkl")
    torch.save({"a\x1b\nb": torch.zeros(1)}, tmp_path / "w.pth")
    assert list(read_named_tensors(tmp_path / "w.pth")) == ["a b"]


@saves
def test_truncated_files_are_refused(save: Save, tmp_path: Path):
    path = tmp_path / "w.pth"
    save({"model": {"a": torch.arange(99.0), "c": np.arange(9.0)}, "args": Namespace(x=1)}, path)
    whole = path.read_bytes()
    for share in (0, 0.1, 0.4, 0.8, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match="cannot be read as weights"):
            read_named_tensors(path)


def test_dicts_that_contain_one_another(tmp_path: Path):
    content: dict[str, Any] = {"a": torch.zeros(3)}
    content |= {f"k{number}": content for number in range(12)}
    content["k0"]["itself"] = content
    torch.save(content, tmp_path / "w.pth")
    assert list(read_named_tensors(tmp_path / "w.pth")) == ["a"]


TINY = ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_export_without_onnx(run: Path, monkeypatch, capsys):
    monkeypatch.setattr(onnx, "find_spec", lambda x: None if x == "onnxscript" else find_spec(x))
    check_refusal(capsys, ["export", str(run), "--to", "onnx"], "pip install 'croc[onnx]'")


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
