"""`croc.add_data`: data of one's own layout."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import croc
from croc.data.scenes import CLASSES, make_scene
from croc.eval import protocols
from croc.eval.datasets import open_segmentation
from tests.api.refusals import refused


@dataclass(frozen=True)
class Halves:
    """Four scenes, whose labels are changed to order."""

    change: Callable[[Tensor], Tensor] = torch.clone
    count: int = 4
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"half {index}"

    def read(self, index: int) -> Any:
        scene = make_scene(9, index, 32)
        changed = self.change(torch.from_numpy(scene.labels)).numpy()
        kind = croc.Labelled if self.change is torch.clone else Unchecked
        return kind(image=scene.image, labels=changed, name=self.name(index))


class Unchecked(croc.Labelled):
    """Past the tests' own check of shapes."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Odd(Halves):
    """Gives what it is told to."""

    given: Any = None

    def read(self, index: int) -> Any:
        return self.given


def too_large(labels: Tensor) -> Tensor:
    return labels + 200


def cut(labels: Tensor) -> Tensor:
    return labels[:, :16]


@pytest.fixture
def added() -> Iterator[None]:
    """What a test adds is gone after it."""
    yield
    protocols.ADDED.clear()


@pytest.mark.usefixtures("added")
class TestAddedData:
    def test_are_evaluated(self, run: croc.Run, tmp_path: Path):
        opened = []

        def open_halves(path: str, split: str) -> Halves:
            opened.append((path, split))
            return Halves()

        refused("no data set is called halves", open_segmentation, "halves:x", "val")
        croc.add_data("halves", open_halves)
        assert protocols.protocols_of("halves:x") == protocols.SEGMENTATION
        found = croc.evaluate(
            "incontext", run.folder, f"halves:{tmp_path}", image_px=32, label_px=32, workers=1
        )
        assert opened == [(str(tmp_path), "train"), (str(tmp_path), "val")]
        assert set(found.classes) == set(CLASSES)
        assert found.scores["mIoU"] > 50  # what is asked about is remembered

    @pytest.mark.parametrize("change", [too_large, cut, Tensor.float])
    def test_are_looked_at(self, change: Callable[[Tensor], Tensor], tmp_path: Path):
        croc.add_data("halves", lambda path, split: Halves(change))
        data = open_segmentation(f"halves:{tmp_path}", "val")
        said = {too_large: "a label is 2", cut: "its labels", Tensor.float: "must be bytes"}
        refused(f"halves, half 0: .*{said[change]}", data.read, 0)

    def test_must_read_labelled(self, tmp_path: Path):
        pixels, labels = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)
        wrong = {
            "read must give croc.Labelled.*, not tuple": (pixels, labels, "a"),
            "not NoneType": None,
            "image must be a NumPy array, not Tensor": Unchecked(
                image=torch.zeros(4, 4, 3), labels=labels, name="a"
            ),
        }
        for said, given in wrong.items():
            croc.add_data("odd", lambda path, split, given=given: Odd(given=given))
            refused(f"odd, half 0: .*{said}", open_segmentation(f"odd:{tmp_path}", "val").read, 0)

    def test_bad_ones_are_refused(self, tmp_path: Path):
        for kind in ("voc12", "davis17", "scenes", "", "a:b"):
            refused("are taken", croc.add_data, kind, lambda path, split: Halves())
        for opened, said in (
            (Halves(count=0), "the part val has no images"),
            (Halves(classes=()), "1 to 255 classes are possible, not 0"),
            (object(), "has no classes, __len__, name, read"),
        ):
            croc.add_data("halves", lambda path, split, opened=opened: opened)  # pyright: ignore
            refused(said, open_segmentation, f"halves:{tmp_path}", "val")
        refused("no such folder", open_segmentation, f"halves:{tmp_path}/no", "val")
