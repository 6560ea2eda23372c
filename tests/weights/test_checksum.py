"""A flipped bit in a checkpoint or an exported file is noticed wherever the file is opened."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from croc.cli import main
from croc.errors import UserError
from croc.weights import checksum
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.checksum import save_sealed, seal_zip, verify
from croc.weights.files import read_named_tensors


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_noticed(path: Path) -> bool:
    """By its checksum, or where that is not even found, by the library that reads the file."""
    try:
        if verify(path):
            return False
        read_named_tensors(path)
    except UserError:
        return True
    return False


def test_commands_refuse_a_damaged_checkpoint_and_name_a_good_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    good, last = checkpoints(folder)
    content = last.read_bytes()
    last.write_bytes(flipped(content, 4 * len(content)))
    for command in (
        ["evaluate", "kmeans", "--weights", str(folder), "--data", "scenes", "--to", "results"],
        ["export", str(folder), "--to", str(tmp_path / "x.safetensors")],
        ["pretrain", str(folder / "config.json")],
    ):
        assert main(command) == 2
        line = capsys.readouterr().err
        assert f"{last} is damaged: its checksum does not match; remove it" in line
    assert main(["show", "weights", str(last)]) == 2
    capsys.readouterr()
    assert main(["show", "weights", str(good)]) == 0
    assert "checksum: matches" in capsys.readouterr().out
    good.write_bytes(b"PK")
    with pytest.raises(UserError, match=r"cannot be read .*; there is no checkpoint before it"):
        load_checkpoint(good)


def test_sums_of_an_exported_folder(run: Path, tmp_path: Path):
    folder = tmp_path / "x"
    assert main(["export", str(run), "--to", "timm", "--folder", str(folder)]) == 0
    check = ["sha256sum", "--check", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 0
    assert verify(folder / "model.safetensors")
    content = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(flipped(content, 99))
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 1


def test_files_without_a_checksum_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors", {"format": "pt"})
    for name in ("a.pt", "a.safetensors"):
        assert not verify(tmp_path / name)
        assert read_named_tensors(tmp_path / name).keys() == {"w"}
    assert main(["show", "weights", "coco-20min"]) == 0
    assert "checksum: none in the file" in capsys.readouterr().out


WEIGHTS = {"w": torch.arange(900.0)}


def seal(folder: Path) -> list[Path]:
    zipped, tensors = folder / "a.pt", folder / "a.safetensors"
    torch.save(WEIGHTS, zipped)
    seal_zip(zipped)
    save_sealed(WEIGHTS, tensors, {"croc": "{}"})
    return [zipped, tensors]


@pytest.mark.parametrize("number", [0, 1])
def test_every_part_of_a_file_counts(monkeypatch, tmp_path, number):
    monkeypatch.setattr(checksum, "PIECE", 1000)
    path = seal(tmp_path)[number]
    assert verify(path)
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert is_noticed(path), at


def test_checksum_is_of_the_pieces(monkeypatch, tmp_path):
    monkeypatch.setattr(checksum, "PIECE", 1000)
    for path in seal(tmp_path):
        content = path.read_bytes()
        at = content.index(b'"sha256t":"') + 11 if path.suffix != ".pt" else len(content) - 64
        digits, blank = content[at : at + 64], content[:at]
        blank += b"0" * 64 + content[at + 64 :] if path.suffix != ".pt" else b""
        pieces = [hashlib.sha256(blank[i : i + 1000]).digest() for i in range(0, len(blank), 1000)]
        assert hashlib.sha256(b"".join(pieces)).hexdigest().encode() == digits
