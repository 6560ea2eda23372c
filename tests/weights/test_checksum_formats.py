"""Checksums of earlier versions, and of files longer than a piece, by the definitions."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from croc.weights import checksum
from croc.weights.checksum import save_sealed, seal_zip, verify
from tests.weights.test_checksum import is_noticed

WEIGHTS = {"w": torch.arange(3000.0)}


def seal_as_before(folder: Path) -> list[Path]:
    """The SHA-256 of all content, behind another tag."""
    zipped, tensors = folder / "a.pt", folder / "a.safetensors"
    torch.save(WEIGHTS, zipped)
    content = zipped.read_bytes()[:-2] + (71).to_bytes(2, "little") + b"sha256 "
    zipped.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    save_file(WEIGHTS, tensors, {"sha256": "0" * 64})
    content = tensors.read_bytes()
    digest = hashlib.sha256(content).hexdigest().encode()
    tensors.write_bytes(content.replace(b"0" * 64, digest, 1))
    return [zipped, tensors]


def seal_now(folder: Path) -> list[Path]:
    zipped, tensors = folder / "a.pt", folder / "a.safetensors"
    torch.save(WEIGHTS, zipped)
    seal_zip(zipped)
    save_sealed(WEIGHTS, tensors, {"croc": "{}"})
    return [zipped, tensors]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seal", [seal_as_before, seal_now])
def test_every_part_of_a_file_counts(monkeypatch, tmp_path, number, seal):
    monkeypatch.setattr(checksum, "PIECE", 1000)
    monkeypatch.setattr(checksum, "CHUNK", 300)
    path = seal(tmp_path)[number]
    assert verify(path)
    content = path.read_bytes()
    for at in range(0, len(content), 37):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert is_noticed(path), at


def test_checksum_is_of_the_pieces(monkeypatch, tmp_path):
    monkeypatch.setattr(checksum, "PIECE", 1000)
    for path in seal_now(tmp_path):
        content = path.read_bytes()
        at = content.index(b'"sha256t":"') + 11 if path.suffix != ".pt" else len(content) - 64
        found, blank = content[at : at + 64], content[:at] + b"0" * 64 + content[at + 64 :]
        blank = blank if path.suffix != ".pt" else content[:at]
        pieces = [hashlib.sha256(blank[i : i + 1000]).digest() for i in range(0, len(blank), 1000)]
        assert hashlib.sha256(b"".join(pieces)).hexdigest().encode() == found
