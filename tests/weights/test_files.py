"""Files are read, never run: pickles of torch and others, hostile, cut and odd ones."""

import io
import os
import pickle
import urllib.request
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from croc.cli import main
from croc.errors import UserError
from croc.eval.features import open_backbone
from croc.weights.describe import describe_file
from croc.weights.files import read_arguments, read_content, read_named_tensors, read_weights
from tests.weights.projects import croc_authors, mae_full


class Command:
    """Unpickled without care it runs a command that leaves a file."""

    def __init__(self, left: Path) -> None:
        self.left = left

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.left}",)


class Evaluation(Command):
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (f"open({str(self.left)!r}, 'w')",)


class Attribute(Command):
    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.left,)


def save_zip(content: Any, path: Path) -> None:
    torch.save(content, path)


def save_old(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def save_pickle(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


class Load(Command):
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return torch.load, (str(self.left),)


class Hub(Command):
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return torch.hub.load_state_dict_from_url, (str(self.left),)


class Download(Command):
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return urllib.request.urlopen, (self.left.as_uri(),)


Save = Callable[[Any, Path], None]
SAVES = pytest.mark.parametrize("save", [save_zip, save_old, save_pickle])


@SAVES
@pytest.mark.parametrize("kind", [Command, Evaluation, Attribute, Load, Hub, Download])
@pytest.mark.parametrize("place", ["alone", "arguments", "tensor", "wrapper", "key"])
def test_hostile_files_are_refused_and_not_run(
    save: Save, kind: type[Command], place: str, tmp_path: Path
):
    left = tmp_path / "ran"
    hostile = kind(left)
    content = {
        "alone": hostile,
        "arguments": {"model": {"a": np.zeros(3)}, "args": Namespace(seed=hostile)},
        "tensor": {"model": {"patch_embed.proj.weight": hostile}},
        "wrapper": {"teacher": OrderedDict(inner=[hostile]), "epoch": 3},
        "key": {"model": {("a", hostile): 1}},
    }[place]
    save(content, tmp_path / "w.pth")
    for read in (read_content, read_named_tensors, read_weights, read_arguments):
        with pytest.raises(UserError, match=r"it wants to run .* do not use this file") as refused:
            read(tmp_path / "w.pth")
        assert "\n" not in str(refused.value)
    assert not left.exists()
    with pytest.raises(UserError, match="cannot be read as weights"):
        open_backbone(str(tmp_path / "w.pth"))
    assert not left.exists()


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def test_pickles_made_by_hand(tmp_path: Path):
    """What no honest writer makes: calls of numbers, states put upon tensors, foreign storages."""
    call = b"ctorch._utils\n_rebuild_tensor_v2\n"
    for code in {
        "a call of a type": opcodes(b"ctorch\nFloatStorage\n", b")R"),
        "a tensor of nothing": opcodes(call, b"(K\x01K\x02))tR"),
        "a tensor of too little": opcodes(call, b")R"),
        "a storage of no type": opcodes(b"(X\x07\x00\x00\x00storageK\x01K\x02K\x03K\x04tQ"),
        "a class by another": opcodes(b"ccopyreg\n_reconstructor\n", b"(K\x01K\x02K\x03tR"),
        "an instance": b"(S'touch x'\nios\nsystem\n.",
        "an object": b"(cos\nsystem\nS'touch x'\no.",
        "an extension": opcodes(b"\x82\x07"),
        "bytes of a number": opcodes(b"c_codecs\nencode\n", b"K\x01\x85R"),
        "a state for a function": opcodes(b"c_codecs\nencode\n", b"(N}tb"),
        "a state for a class": opcodes(b"cargparse\nNamespace\n", b"}b"),
        "a stack too short": opcodes(b"R"),
    }.values():
        (tmp_path / "w.pkl").write_bytes(code)
        with pytest.raises(UserError, match="cannot be read as weights"):
            read_content(tmp_path / "w.pkl")


def test_a_files_words_do_not_reach_the_terminal(tmp_path: Path):
    (tmp_path / "w.pkl").write_bytes(b"\x80\x04\x8c\x02os\x8c\x08a\x1b[2J\nb\n\x93.")
    with pytest.raises(UserError, match=r"wants to run os.a\?\[2J\?b\?,"):
        read_content(tmp_path / "w.pkl")
    torch.save({"a\x1b\nb": torch.zeros(1)}, tmp_path / "w.pth")
    assert list(read_named_tensors(tmp_path / "w.pth")) == ["a??b"]


def test_arguments_that_hold_themselves(tmp_path: Path):
    arguments = Namespace()
    arguments.itself = arguments
    save_pickle({"args": arguments}, tmp_path / "w.pkl")
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_arguments(tmp_path / "w.pkl")


def test_views_beyond_a_storage(tmp_path: Path):
    torch.save({"a": torch.arange(6.0)}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    page = next(name for name in parts if name.endswith("data.pkl"))
    assert parts[page].count(b"K\x06\x85") == 1
    parts[page] = parts[page].replace(b"K\x06\x85", b"K\x99\x85")  # a size of 153
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_named_tensors(tmp_path / "w.pth")


@SAVES
def test_cut_files(save: Save, tmp_path: Path):
    path = tmp_path / "w.pth"
    save({"model": {"a": np.arange(9.0), "b": {"c": [1, 2]}}, "args": Namespace(x=1)}, path)
    whole = path.read_bytes()
    for share in (0, 0.1, 0.4, 0.8, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match="cannot be read as weights"):
            read_named_tensors(path)


def test_cut_tensors_of_old_files(tmp_path: Path):
    save_old({"a": torch.arange(1000.0)}, tmp_path / "w.pth")
    whole = (tmp_path / "w.pth").read_bytes()
    (tmp_path / "w.pth").write_bytes(whole[:-8])
    with pytest.raises(UserError, match="ends early"):
        read_named_tensors(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no pickle at all", "cannot be read as weights"),
        (b"\0" * 257 + b"ustar" + b"\0" * 300, "tar archive, unpack it"),
        (pickle.dumps([1, 2]), "holds no named tensors but a list"),
        (pickle.dumps(Namespace(a=1)), r"an object \(argparse.Namespace\).*keep its state_dict"),
    ],
)
def test_odd_files(content: bytes, said: str, tmp_path: Path):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_named_tensors(tmp_path / "w.pth")


def test_other_zip_files(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        archive.writestr("photo.jpg", b"x")
    with pytest.raises(UserError, match="torch did not write"):
        read_named_tensors(tmp_path / "w.zip")


@pytest.mark.parametrize("save", [save_zip, save_old])
def test_tensors_of_every_kind(save: Save, tmp_path: Path):
    base = torch.randn(4, 6)
    content = {
        "whole": base,
        "view": base.T[1:3, ::2],
        "repeated": torch.ones(()).expand(5, 7),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        **{
            str(dtype): torch.ones(3, dtype=dtype)
            for dtype in (
                *(torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32),
                *(torch.int16, torch.int8, torch.uint8, torch.bool),
            )
        },
    }
    save({"in": {"side": OrderedDict(content)}}, tmp_path / "w.pth")
    found = read_named_tensors(tmp_path / "w.pth")
    assert list(found) == [f"in.side.{name}" for name in content]
    for name, value in content.items():
        assert torch.equal(found[f"in.side.{name}"], value)
        assert found[f"in.side.{name}"].dtype == value.dtype


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays(protocol: int, tmp_path: Path):
    content = {
        "rows": np.random.default_rng(0).random((3, 4)).astype(np.float32),
        "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big": np.arange(3, dtype=">i4"),
        "small": np.ones(2, np.int8),
    }
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"model": content}, protocol=protocol))
    found = read_named_tensors(tmp_path / "w.pkl")
    for name, value in content.items():
        np.testing.assert_array_equal(found[f"model.{name}"].numpy(), value)


def test_arrays_of_objects_are_no_tensors(tmp_path: Path):
    save_pickle({"model": {"a": np.array([{1}, None], dtype=object)}}, tmp_path / "w.pkl")
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_named_tensors(tmp_path / "w.pkl")


def test_safetensors(tmp_path: Path):
    save_file({"backbone.a": torch.ones(3)}, tmp_path / "w.safetensors")
    assert list(read_named_tensors(tmp_path / "w.safetensors")) == ["backbone.a"]
    assert read_arguments(tmp_path / "w.safetensors") == {}
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_named_tensors(tmp_path / "w.safetensors")


def test_the_authors_arguments(tmp_path: Path):
    croc_authors({"cls_token": torch.zeros(1, 1, 4)}, tmp_path / "croc.pth")
    assert read_arguments(tmp_path / "croc.pth") == {
        "arch": "vit_small",
        "n_tokens": 12,
        "n_centroids_max": 8,
        "pos_alpha": 4.0,
        "global_crops_scale": [0.25, 1.0],
        "output_dir": "/scratch/croc",
    }
    mae_full({"cls_token": torch.zeros(1, 1, 4)}, tmp_path / "mae.pth")
    assert read_arguments(tmp_path / "mae.pth")["model"] == "mae_vit_small_patch16"
    torch.save({"a": torch.zeros(1)}, tmp_path / "bare.pth")
    assert read_arguments(tmp_path / "bare.pth") == {}


def test_what_is_no_number_is_named(tmp_path: Path):
    arguments = Namespace(when=io.StringIO, odd={1, 2}, nested=Namespace(a=np.float32(0.5)))
    save_pickle({"args": arguments}, tmp_path / "w.pkl")
    found = read_arguments(tmp_path / "w.pkl")
    assert found["nested"] == {"a": 0.5}
    assert all(isinstance(found[name], str) for name in ("when", "odd"))


def test_a_file_is_described(tmp_path: Path):
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    croc_authors(vit.state_dict(), tmp_path / "croc.pth")
    said = describe_file(tmp_path / "croc.pth")
    assert said[0] == "layout: the authors' CrOC full checkpoint, from teacher.backbone"
    assert said[1].startswith("network: vit_tiny_patch16_224")
    assert "n_centroids_max: 8" in said


def test_a_command_describes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    croc_authors(vit.state_dict(), tmp_path / "croc.pth")
    assert main(["show", "weights", str(tmp_path / "croc.pth")]) == 0
    assert "n_centroids_max: 8" in capsys.readouterr().out
    (tmp_path / "w.pth").write_bytes(b"")
    assert main(["show", "weights", str(tmp_path / "w.pth")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("croc: ")
    assert said.count("\n") == 1


def test_a_command_names_no_flag_that_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for path in (tmp_path, tmp_path / "nowhere.pth"):
        assert main(["show", "weights", str(path)]) == 2
        assert "--weights" not in capsys.readouterr().err


def test_numbers_too_long_to_print(tmp_path: Path):
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    long = 10**6000
    content = {**vit.state_dict(), long: torch.zeros(1), "args": {"n": long, "in": {long: 1}}}
    torch.save(content, tmp_path / "w.pth")
    said = describe_file(tmp_path / "w.pth")
    assert "n: a number of 19,932 bits" in said
    assert "in: a dict too long to print" in said
    assert "a int too long to print" in read_weights(tmp_path / "w.pth")


def test_compressed_files(tmp_path: Path):
    """A megabyte of them can be a gigabyte."""
    with zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match="its parts are compressed"):
        read_content(tmp_path / "w.pth")


def test_containers_that_hold_one_another(tmp_path: Path):
    """A few hundred bytes, but without end when they are written out."""
    turning: dict[str, Any] = {}
    for number in range(12):
        turning[f"k{number}"] = turning
    save_pickle(turning, tmp_path / "w.pkl")
    with pytest.raises(UserError, match="its parts hold one another"):
        read_named_tensors(tmp_path / "w.pkl")
    doubled: list[Any] = ["x"]
    for _ in range(40):
        doubled = [doubled, doubled]
    save_pickle({"args": {"l": doubled}}, tmp_path / "w.pkl")
    with pytest.raises(UserError, match="its arguments hold one another"):
        read_arguments(tmp_path / "w.pkl")


def test_a_wrapper_of_itself(tmp_path: Path):
    wrapper: dict[str, Any] = {}
    wrapper["model"] = wrapper
    save_pickle(wrapper, tmp_path / "w.pkl")
    with pytest.raises(UserError, match="holds no named tensors"):
        read_weights(tmp_path / "w.pkl")
