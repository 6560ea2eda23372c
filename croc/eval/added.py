"""Your own segmentation data in your own layout, added from Python: `add_data`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from croc.errors import UserError
from croc.eval.datasets import Labelled, SegmentationData
from croc.eval.metrics import IGNORED
from croc.eval.protocols import ADDED, IMAGES, VIDEOS

Opener = Callable[[str, str], SegmentationData]


def add_data(kind: str, opener: Opener) -> None:
    """Let `croc.evaluate` read KIND:PATH; a kind that was added before is replaced.

    For a folder of `images/` and `labels/` there is no need of it: that is `folder:PATH`.

    Args:
        kind: The name to stand before the colon; PATH is a folder or a file that is there.
        opener: Called with PATH and "train" or "val"; it gives an object with `classes` (a tuple
            of names), `len()`, `name(index)` and `read(index)`, which gives `croc.Labelled`: a
            photograph of bytes "h w 3" and the class of each pixel as bytes "h w", counted from
            0, 255 where it is unknown. Worker processes get copies, so it must be picklable.

    Raises:
        UserError: In one line, for a name that is taken; and later, when the data are read, for
            what is not `Labelled`, or labels that do not fit the photograph or the classes.
    """
    taken = (*IMAGES, *VIDEOS, "scenes")
    if kind in taken or not kind or ":" in kind:
        raise UserError(f"{kind!r} cannot name data of yours: {', '.join(taken)} are taken")
    ADDED[kind] = lambda path, split: _open(kind, opener, path, split)


def _open(kind: str, opener: Opener, path: str, split: str) -> "CheckedData":
    if not Path(path).expanduser().exists():
        raise UserError(f"{kind}:{path}: there is no such folder or file")
    data = opener(path, split)
    if not isinstance(data, SegmentationData):
        lacks = [name for name in ("classes", "__len__", "name", "read") if not hasattr(data, name)]
        raise UserError(f"{kind}: what was opened has no {', '.join(lacks)}")
    if not len(data):
        raise UserError(f"{kind}:{path}: the part {split} has no images")
    if not 0 < len(data.classes) <= IGNORED:
        raise UserError(f"{kind}: 1 to {IGNORED} classes are possible, not {len(data.classes)}")
    return CheckedData(data, kind)


@dataclass(frozen=True)
class CheckedData:
    """Data of someone else's making: what they read is looked at before it is scored."""

    data: SegmentationData
    kind: str

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.data.classes)

    def __len__(self) -> int:
        return len(self.data)

    def name(self, index: int) -> str:
        return self.data.name(index)

    def read(self, index: int) -> Labelled:
        read = self.data.read(index)
        problem = _problem(read, len(self.classes))
        if problem:
            raise UserError(f"{self.kind}, {self.name(index)}: {problem}")
        return read


def _problem(read: object, classes: int) -> str:
    if not isinstance(read, Labelled):
        return f"read must give croc.Labelled(image, labels, name), not {type(read).__name__}"
    image, labels = read.image, read.labels
    for what, array, axes in (("image", image, 3), ("labels", labels, 2)):
        if not isinstance(array, np.ndarray):
            return f"{what} must be a NumPy array, not {type(array).__name__}"
        if array.dtype != np.uint8 or array.ndim != axes:
            return f"{what} must be bytes of {axes} axes, not {array.dtype} of {array.ndim}"
    if image.shape != (*labels.shape, 3):
        return f"the image is {image.shape}, its labels {labels.shape}"
    strange = labels[(labels >= classes) & (labels != IGNORED)]
    if strange.size:
        return f"a label is {strange[0]}, but classes count from 0 to {classes - 1}"
    return ""
