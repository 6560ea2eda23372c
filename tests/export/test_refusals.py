"""What cannot be exported is said in one line, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

import croc.weights.export.onnx_graph
import croc.weights.export.writing
from croc.cli import main
from croc.errors import UserError
from croc.weights.export.command import KINDS
from croc.weights.export.transformers_layout import check_is_vit_model
from tests.export.sources import make_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], here: Path, *arguments: str) -> str:
    before = sorted(here.rglob("*"))
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sorted(here.rglob("*")) == before
    return said.err


def test_what_was_asked(run: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    made, aside = str(run), ("--folder", "new/folder")
    asked = {
        ("nowhere", "--to", "timm", *aside): "nowhere is no run: give a folder of croc pretrain",
        ("timm:vit_tiny_patch16_224", "--to", "onnx"): "is no run",
        (str(here), "--to", "timm"): "holds no run",
        (made, "--to", "tim", *aside): "give timm, transformers, torchhub, onnx or safetensors",
        (made, "--to", "a.onnx"): "ends in .safetensors",
        (made, "--to", "a.safetensors", *aside): "--folder is for folders",
        (made, "--to", "a.safetensors", "--name", "a"): "--name is for folders",
        (made, "--to", "onnx", "--dtype", "bfloat16"): "written in float32",
        (made, "--to", "timm", "--dtype", "int8"): "invalid choice",
        (made, "--to", "timm", "--name", "a/b"): "--name 'a/b': give a name",
        (made, "--to", "timm", "--name", ""): "--name '': give a name",
        (made, "--to", "timm", "--scores", "nowhere", *aside): "nowhere",
    }
    for arguments, said in asked.items():
        assert said in refusal(capsys, here, *arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(
    kind: str, run: Path, here: Path, capsys: pytest.CaptureFixture[str]
):
    (here / "empty").mkdir()
    (here / "file").write_text("mine")
    (here / "link").symlink_to("nowhere")
    (here / f"tiny-{kind}").mkdir()
    for name in ("empty", "file", "link", "."):
        said = refusal(capsys, here, str(run), "--to", kind, "--folder", name)
        assert f"--folder {name}: it exists, and nothing is overwritten" in said
    assert f"tiny-{kind}: it exists" in refusal(capsys, here, str(run), "--to", kind)
    assert (here / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("model", "feature"),
    [
        ("vit_small_patch14_reg4_dinov2", "register tokens"),
        ("vit_small_patch14_dinov2", "layer scale"),
        ("vit_xsmall_patch16_clip_224", "a norm before the blocks"),
        ("vit_base_patch16_clip_quickgelu_224", "a norm before the blocks"),
        ("deit_tiny_distilled_patch16_224", "a distillation token"),
        ("flexivit_small", "no position for its CLS token"),
        ("vit_giant_patch14_dinov2", "blocks of another kind (Block, GluMlp)"),
    ],
)
def test_what_transformers_has_not(
    model: str, feature: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    file = make_file(here / "a.safetensors", model)
    said = refusal(capsys, here, str(file), "--to", "transformers")
    assert f"{model} has {feature}, which transformers' ViTModel has not: take --to timm" in said


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"qk_norm": True}, "a norm of queries and keys"),
        ({"scale_attn_norm": True}, "a norm within attention"),
        ({"scale_mlp_norm": True}, "a norm within the MLP"),
        ({"proj_bias": False}, "no bias after attention"),
        ({"act_layer": "gelu_tanh"}, "another activation than the exact GELU"),
        ({"norm_layer": "rmsnorm"}, "another norm than LayerNorm"),
        ({"final_norm": False}, "another norm than LayerNorm"),
        ({"embed_norm_layer": "layernorm"}, "a norm of its patches"),
        ({"pos_embed": "none"}, "no position for its CLS token"),
        ({"block_fn": ParallelScalingBlock}, "blocks of another kind (ParallelScalingBlock"),
    ],
)
def test_what_no_name_of_timms_has(options: dict[str, Any], feature: str):
    plain = {"embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 0}
    check_is_vit_model(VisionTransformer(**plain), "plain")
    with pytest.raises(UserError) as refused:
        check_is_vit_model(VisionTransformer(**plain, **options), "mine")
    assert f"mine has {feature}" in str(refused.value)


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_a_missing_extra(
    missing: str,
    run: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def found(name: str) -> object:
        return None if name == missing else find_spec(name)

    monkeypatch.setattr(croc.weights.export.onnx_graph, "find_spec", found)
    assert "pip install 'croc[onnx]'" in refusal(capsys, here, str(run), "--to", "onnx")


def test_a_file_of_others(here: Path, capsys: pytest.CaptureFixture[str]):
    from safetensors.torch import load_file, save_file

    file = make_file(here / "a.safetensors", "vit_tiny_patch16_224")
    save_file(load_file(file), file)
    assert "is no run" in refusal(capsys, here, str(file), "--to", "timm")


def test_a_disk_that_fills(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refusal(capsys, here, str(run), "--to", "timm")


KILLED = """
import os, signal, sys
import croc.weights.export.writing
from croc.cli import main
croc.weights.export.writing._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_a_kill_leaves_no_folder(run: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    command = ["export", str(run), "--to", "torchhub", "--folder", "new/made"]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in (here / "new").iterdir()] == ["made.partial"]
    (here / "new" / "made.partial" / "stale").touch()
    assert main(command) == 0
    assert capsys.readouterr().out == "new/made\n"
    assert [path.name for path in (here / "new").iterdir()] == ["made"]
    names = ["README.md", "config.json", "hubconf.py", "model.safetensors"]
    assert sorted(path.name for path in (here / "new" / "made").iterdir()) == names
