"""A checkpoint that is not one is said in a line, whatever is wrong with it."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from croc.errors import UserError
from croc.train.checkpoint import FORMAT, TrainState, load_checkpoint

WHOLE: dict[str, Any] = {
    "format": FORMAT,
    "step": 3,
    "images": 4,
    "failed": [],
    "optimizer": {},
    "modules": {"student": {"a": torch.zeros(3)}},
}


def test_a_whole_one_is_loaded(tmp_path: Path):
    torch.save(WHOLE, tmp_path / "c.pt")
    assert load_checkpoint(tmp_path / "c.pt")["step"] == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": -1}, "is of step -1"),
        ({"modules": [1]}, "lacks modules"),
        ({"format": None}, "no"),
    ],
    ids=str,
)
def test_a_state_that_cannot_be(change: dict[str, Any], said: str, tmp_path: Path):
    torch.save(WHOLE | change, tmp_path / "c.pt")
    with pytest.raises(UserError, match=f"{said}.*; remove it to resume from the one before"):
        load_checkpoint(tmp_path / "c.pt")
    with pytest.raises(UserError, match=f"{said}.*; take another"):
        load_checkpoint(tmp_path / "c.pt", advice="take another")


@pytest.mark.filterwarnings("ignore")  # of torch, about what it finds in such files
def test_every_changed_byte_is_a_line_or_nothing(tmp_path: Path):
    """torch raises whatever there is: KeyError, IndexError, TypeError, AttributeError, …"""
    torch.save(WHOLE, tmp_path / "c.pt")
    with zipfile.ZipFile(tmp_path / "c.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    page = next(name for name in parts if name.endswith("data.pkl"))
    said: list[str] = []
    for place in range(len(parts[page])):
        for put in (b"R", b"t", b"u", b"K"):
            changed = parts[page][:place] + put + parts[page][place + 1 :]
            with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
                for name, content in (parts | {page: changed}).items():
                    archive.writestr(name, content)
            try:
                load_checkpoint(tmp_path / "c.pt")
            except UserError as error:
                said.append(str(error))
    assert len(said) > 100
    assert not [line for line in said if "\n" in line]


def test_an_optimiser_keeps_its_own_ways():
    """A run of the CPU, where AdamW is not fused, may go on by a GPU, where it is."""
    given = torch.nn.Linear(2, 2)
    plain = torch.optim.AdamW([{"params": list(given.parameters()), "decayed": True}], fused=False)
    given(torch.ones(1, 2)).sum().backward()
    plain.step()
    fused = torch.optim.AdamW([{"params": list(given.parameters()), "decayed": True}], fused=True)
    modules: dict[str, torch.nn.Module] = {"student": given}
    saved = TrainState(modules, plain, images=3, step=1).state_dict()
    TrainState(modules, fused, images=3).load_state_dict(saved)
    assert fused.param_groups[0]["fused"] is True
    assert fused.state[given.weight]["step"] == 1
    fused.step()
