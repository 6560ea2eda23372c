"""Bad input of the Python API: a UserError of one line."""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import croc
from croc.config import PretrainConfig
from croc.eval import protocols
from croc.eval.datasets import open_segmentation
from tests.lab.test_api import Scenes

RANDOM = "random:vit_tiny_patch16_224"
IMAGE = torch.zeros(3, 32, 32)
TOKENS, POSITIONS = torch.ones(2, 3, 32, 4), torch.ones(2, 32, 2)
SALIENCY, SEEDS = torch.full((2, 3, 32), 1 / 32), torch.arange(12).expand(2, 3, 12)
GOOD = {"tokens": TOKENS, "positions": POSITIONS, "saliency": SALIENCY}


class Unchecked(croc.LabeledImage):
    """Without the type checks that only tests have."""

    def __init__(self, image: Any, labels: Any) -> None:
        for name, value in {"image": image, "labels": labels, "name": "a"}.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


PIXELS, LABELS = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)
BAD: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    *(
        (croc.cluster, (), GOOD | changes, fragment)
        for changes, fragment in (
            ({"views": 3}, "32 tokens cannot come from 3 views"),
            ({"tokens": TOKENS[0]}, "tokens must be"),
            ({"positions": POSITIONS[:, :31]}, "positions must be"),
            ({"saliency": SALIENCY * 1.002}, "divide it by its sum"),
            ({"saliency": SALIENCY.index_fill(2, torch.tensor([31]), -1 / 32)}, "not be negative"),
            ({"seeds": SEEDS[:, :, :11]}, "seeds must be"),
        )
    ),
    (croc.features, ("nowhere.jpg", RANDOM), {}, "nowhere.jpg cannot be read as an image: No"),
    (croc.features, (IMAGE[:1], RANDOM), {}, "3 × height × width, not Tensor torch.Size([1"),
    (croc.features, (IMAGE + 1.5, RANDOM), {}, "not normalized"),
    (croc.features, (Image.new("I;16", (40, 40)), RANDOM), {}, "mode I;16"),
    (croc.features, ([3], RANDOM), {}, "not int"),
    (croc.features, (IMAGE, RANDOM), {"size_px": (16, 20)}, "20 px: not a multiple"),
    (croc.features, (IMAGE, RANDOM), {"size_px": 0}, "size_px must be at least 1, not 0"),
    (croc.features, (IMAGE, RANDOM), {"batch": 0}, "batch must be at least 1, not 0"),
    (croc.evaluate, ("linear", torch.nn.Identity(), "scenes"), {}, "must be a path or name"),
    (croc.Run, ("no/such",), {}, "has no run"),
    (croc.pretrain, ("demos",), {}, "unknown recipe demos; perhaps you meant demo"),
    (croc.pretrain, (PretrainConfig(),), {}, "a PretrainConfig is not a recipe"),
    (croc.pretrain, ("demo",), {"cluster": {"kstart": 3}}, "perhaps you meant cluster.k_start"),
    (croc.pretrain, ("dino-demo",), {"cluster": {"k_start": 3}}, "unknown option cluster"),
    (croc.pretrain, ("demo",), {"optim": {"epochs": "3"}}, "optim.epochs cannot be '3'"),
    (croc.evaluate, ("liner", RANDOM, "scenes"), {}, "perhaps you meant linear"),
    (croc.evaluate, ("linear", RANDOM, "scenes"), {"step": 3}, "perhaps you meant steps"),
    (croc.evaluate, ("linear", RANDOM, "scenes"), {"device": "gpu"}, "device cannot be 'gpu'"),
    (Unchecked, (PIXELS, LABELS[:2]), {}, "a: image and labels must be uint8 (h, w, 3) and (h, w)"),
    (Unchecked, (PIXELS, LABELS + 0.5), {}, "not uint8 (4, 4, 3) and float64 (4, 4)"),
    *((croc.register_dataset, (kind, print), {}, "are taken") for kind in ("voc12", "", "a:b")),
]


@pytest.mark.parametrize(("call", "arguments", "options", "fragment"), BAD)
def test_bad_input_is_one_line(
    call: Any, arguments: tuple[Any, ...], options: dict[str, Any], fragment: str
):
    """Without the type checks that only tests have."""
    call = inspect.unwrap(call) if inspect.isfunction(call) else call
    with pytest.raises(croc.UserError, match=re.escape(fragment)) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class Wrong(Scenes):
    """Each image has a label that is no class; or there are no images."""

    count: int = 4

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> croc.LabeledImage:
        return croc.LabeledImage(PIXELS, LABELS + np.uint8(200), "a")


@pytest.mark.parametrize(
    ("count", "fragment"), [(4, "label 200 is out of range"), (0, "has no images")]
)
def test_added_data(count: int, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(protocols.REGISTERED, "mine", None)  # removed again after the test
    croc.register_dataset("mine", lambda path, split: Wrong(count=count))
    with pytest.raises(croc.UserError, match=fragment):
        open_segmentation(f"mine:{tmp_path}", "val").read(0)
