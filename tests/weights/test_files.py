"""Files are read and never run, whatever they contain."""

import io
import os
import pickle
from argparse import Namespace
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from croc.errors import UserError
from croc.weights.files import read_arguments, read_content, read_named_tensors
from tests.weights.projects import CROC_ARGS, SAVES, Save

saves = pytest.mark.parametrize("save", SAVES)
torch_saves = pytest.mark.parametrize("save", SAVES[:2])


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
        b"no pickle at all",
        b"",
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


def test_arrays_become_tensors(tmp_path: Path):
    content = {
        "rows": np.random.default_rng(0).random((3, 4)).astype(np.float32),
        "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big": np.arange(3, dtype=">i4"),
        "small": np.ones(2, np.int8),
    }
    torch.save({"model": content}, tmp_path / "w")
    for protocol in (None, 2, 3, 4, 5):
        if protocol:
            (tmp_path / "w").write_bytes(pickle.dumps({"model": content}, protocol=protocol))
        read = read_named_tensors(tmp_path / "w")
        for name, value in content.items():
            np.testing.assert_array_equal(read[f"model.{name}"].numpy(), value)


@torch_saves
def test_arguments_are_read_as_text(save: Save, tmp_path: Path):
    arguments = Namespace(**vars(CROC_ARGS), odd=io.StringIO)
    arguments.itself = arguments
    save({"args": arguments}, tmp_path / "croc.pth")
    assert read_arguments(tmp_path / "croc.pth") == {
        "arch": "vit_small",
        "n_tokens": "12",
        "n_centroids_max": "8",
        "pos_alpha": "4.0",
        "global_crops_scale": "(0.25, 1.0)",
        "output_dir": "/scratch/croc",
        "odd": "<class 'croc.weights.files.OpaqueObject'>",
        "itself": "argparse.Namespace(…)",
    }
    torch.save({"a": torch.zeros(1)}, tmp_path / "bare.pth")
    assert read_arguments(tmp_path / "bare.pth") == {}


def test_dicts_that_contain_one_another(tmp_path: Path):
    content: dict[str, Any] = {"a": torch.zeros(3)}
    content |= {f"k{number}": content for number in range(12)}
    content["k0"]["itself"] = content
    torch.save(content, tmp_path / "w.pth")
    assert list(read_named_tensors(tmp_path / "w.pth")) == ["a"]
