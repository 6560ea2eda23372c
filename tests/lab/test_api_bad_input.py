"""Bad input of the Python API: a UserError of one line."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import croc
from croc.config import PretrainConfig
from croc.data.scenes import CLASSES
from croc.eval import protocols
from croc.eval.datasets import open_segmentation

RANDOM = "random:vit_tiny_patch16_224"
IMAGE = torch.zeros(3, 32, 32)
TOKENS, POSITIONS = torch.ones(2, 3, 32, 4), torch.ones(2, 32, 2)
SALIENCY, SEEDS = torch.full((2, 3, 32), 1 / 32), torch.arange(12).expand(2, 3, 12)


def refused(fragment: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Without the type checks that only tests have."""
    call = inspect.unwrap(call) if inspect.isfunction(call) else call
    with pytest.raises(croc.UserError, match=re.escape(fragment)) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"views": 3}, "32 tokens cannot come from 3 views"),
        ({"tokens": TOKENS[0]}, "tokens must be floats of B × H × T × d"),
        ({"tokens": np.zeros((2, 3, 32, 4))}, "not a ndarray"),
        ({"tokens": TOKENS / 0}, "tokens must be finite"),
        ({"positions": POSITIONS[:, :31]}, "positions must be floats of B × T × 2"),
        ({"saliency": SALIENCY * 1.002}, "divide it by its sum"),
        ({"saliency": SALIENCY.index_fill(2, torch.tensor([31]), -1 / 32)}, "not be negative"),
        ({"seeds": SEEDS[:, :, :11]}, "seeds must be integers of B × H × 12"),
        ({"seeds": SEEDS + 21}, "different tokens of an image, from 0 to 31"),
        ({"seeds": SEEDS // 2}, "seeds must be different tokens"),
        ({"keys": torch.arange(3)}, "keys must be integers of B"),
        ({"config": croc.ClusterConfig(k_start=33)}, "more than the 32 tokens"),
    ],
)
def test_cluster(changes: dict[str, Any], fragment: str):
    tensors = {"tokens": TOKENS, "positions": POSITIONS, "saliency": SALIENCY}
    refused(fragment, croc.cluster, **(tensors | changes))


@pytest.mark.parametrize(
    ("images", "options", "fragment"),
    [
        ("nowhere.jpg", {}, "nowhere.jpg cannot be read as a photograph: No such file"),
        (torch.zeros(1, 40, 40), {}, "3 × height × width, not (1, 40, 40)"),
        (torch.full((3, 40, 40), 1.5), {}, "before it is normalised"),
        (torch.full((3, 40, 40), torch.nan), {}, "must be in 0 … 1, not in nan"),
        (torch.zeros(3, 40, 40, dtype=torch.int64), {}, "give bytes"),
        (Image.new("I;16", (40, 40)), {}, "mode I;16"),
        ([3], {}, "not of type int"),
        (IMAGE, {"size_px": (16, 20)}, "20 px do not consist"),
        (IMAGE, {"size_px": 4}, "size_px 4: one patch"),
        (IMAGE, {"batch": 0}, "batch must be"),
    ],
)
def test_features(images: Any, options: dict[str, Any], fragment: str):
    refused(fragment, croc.features, images, RANDOM, **options)


def test_features_of_a_broken_file(tmp_path: Path):
    broken = tmp_path / "broken.png"
    Image.effect_noise((64, 64), 90).save(broken)
    broken.write_bytes(broken.read_bytes()[:400])
    refused("broken.png cannot be read", croc.features, broken, RANDOM)
    with Image.open(broken) as image:
        refused("cannot be decoded", croc.features, image, RANDOM)


def test_weights(tmp_path: Path):
    backbone = croc.load_backbone(RANDOM)
    refused("is an open backbone", croc.load_backbone, backbone)
    refused("is an open backbone", croc.evaluate, "linear", backbone, "scenes:4")
    refused("not of type NoneType", croc.features, IMAGE, None)
    refused("no such run or file", croc.features, IMAGE, tmp_path / "no")
    refused("holds no run", croc.Run, tmp_path)
    outside = croc.Features(torch.zeros(2, 4, 3), None, (50, 200))
    refused("200, 10 is outside the photograph of 200 × 50 px", outside.patch_at, 200, 10)


@pytest.mark.parametrize(
    ("recipe", "options", "fragment"),
    [
        ("demos", {}, "no recipe demos; perhaps you meant demo"),
        (PretrainConfig(), {}, "a PretrainConfig is no recipe"),
        ("demo", {"cluster": {"kstart": 3}}, "cluster.kstart; perhaps you meant cluster.k_start"),
        ("demo", {"optim": 3}, "optim takes its options by their names"),
        ("dino-demo", {"cluster": {"k_start": 3}}, "there is no option cluster"),
        ("demo", {"optim": {"epochs": "3"}}, "the option optim.epochs cannot be '3'"),
        ("demo", {"optim": {"epochs": 1}}, "--optim.warmup-epochs"),
        ("demo", {"folder": "x", "run": {"folder": "y"}}, "run.folder is given twice"),
        ("demo", {"data": "no/such"}, "no/such"),
        ("coco-vits16", {}, "--data.root"),
    ],
)
def test_pretrain(recipe: Any, options: dict[str, Any], fragment: str):
    refused(fragment, croc.pretrain, recipe, **options)


@pytest.mark.parametrize(
    ("protocol", "data", "options", "fragment"),
    [
        ("liner", "scenes", {}, "no protocol liner; perhaps you meant linear"),
        ("linear", "scenes", {"step": 3}, "no option step; perhaps you meant steps"),
        ("linear", "scenes", {"steps": "3"}, "the option steps cannot be '3'"),
        ("linear", "scenes", {"steps": 3, "epochs": 3}, "give one of them"),
        ("linear", "scenes", {"device": "gpu"}, "the option device cannot be 'gpu'"),
        ("video", "voc12:x", {}, "video cannot be scored on voc12:x"),
        ("all", "scenes", {"steps": 3}, "to change steps, name one protocol"),
        ("linear", Path("mine"), {}, "KIND:PATH, such as 'folder:mine'"),
    ],
)
def test_evaluate(protocol: Any, data: Any, options: dict[str, Any], fragment: str):
    refused(fragment, croc.evaluate, protocol, RANDOM, data, **options)


class Unchecked(croc.Labelled):
    """Without the type checks that only tests have."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Data:
    """A data set whose `read` returns what it is given."""

    item: Any = None
    count: int = 4
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"item {index}"

    def read(self, index: int) -> Any:
        return self.item


PIXELS, LABELS = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)


@pytest.mark.parametrize(
    ("data", "fragment"),
    [
        (Data((PIXELS, LABELS, "a")), "read must give croc.Labelled"),
        (Data(Unchecked(image=PIXELS, labels=LABELS + 200, name="a")), "a label is 200"),
        (Data(Unchecked(image=PIXELS, labels=LABELS[:2], name="a")), "its labels"),
        (Data(Unchecked(image=PIXELS, labels=LABELS + 0.5, name="a")), "must be bytes"),
        (Data(Unchecked(image=IMAGE, labels=LABELS, name="a")), "image must be a NumPy array"),
        (Data(count=0), "the part val has no images"),
        (Data(classes=()), "1 to 255 classes are possible, not 0"),
        (object(), "has no classes, __len__, name, read"),
    ],
)
def test_added_data(data: Any, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(protocols.ADDED, "mine", None)  # removed again after the test
    croc.add_data("mine", lambda path, split: data)
    refused(fragment, lambda: open_segmentation(f"mine:{tmp_path}", "val").read(0))


def test_added_names():
    for kind in ("voc12", "scenes", "", "a:b"):
        refused("are taken", croc.add_data, kind, lambda path, split: Data())
