"""Weights that ship with the project, by their names, and the networks of such files.

They lie in `weights/` of a checkout; an installed package looks into share/croc/weights of its
environment, of the user, and beside itself (`pip install --target`). The folder that
$CROC_WEIGHTS names comes first.
"""

import os
import site
import sys
from pathlib import Path

import torch

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.weights.build import check_tensors, fill
from croc.weights.files import read_weights
from croc.weights.layouts import check_numbers
from croc.weights.page import WeightsPage

VARIABLE = "CROC_WEIGHTS"
SUFFIX = ".safetensors"


def folders() -> list[Path]:
    root = Path(__file__).parents[2]
    asked = os.environ.get(VARIABLE)
    return [
        *([Path(asked).expanduser()] if asked else []),
        *([root / "weights"] if (root / "pyproject.toml").is_file() else []),
        *(Path(base) / "share/croc/weights" for base in (sys.prefix, site.getuserbase(), root)),
    ]


def shipped() -> dict[str, Path]:
    """Files by name; of two with one name the first folder's."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.stem, path)
    return found


def find_weights(spec: str) -> Path:
    """A path as it is; if nothing lies there, shipped weights of that name."""
    path = Path(spec)
    return path if path.exists() else shipped().get(spec, path)


def say_shipped() -> str:
    """For messages."""
    return f"shipped weights: {', '.join(shipped()) or 'none here'}"


def build_exported(path: Path, page: WeightsPage) -> Backbone:
    """The network that a page tells of, filled from its file.

    It is first sketched without memory, since a page may tell of a network larger than its file.
    """
    weights = read_weights(path)
    check_numbers(weights, str(path))
    if page.depth > len(weights):
        raise UserError(f"{path} has no {page.depth:,} blocks, though it says so")
    model = ModelConfig(page.model, patch_px=page.patch_px, depth=page.depth)
    with torch.random.fork_rng(devices=[]):  # what timm draws is overwritten, and is no one's turn
        try:
            with torch.device("meta"):
                sketch = Backbone(model, page.image_px)
        except UserError as error:
            reason = str(error).removeprefix("--model.name: ")
            raise UserError(f"{path} describes a network that cannot be built: {reason}") from None
        check_tensors(sketch.vit, weights, str(path))
        backbone = Backbone(model, page.image_px)
    fill(backbone.vit, weights, str(path))
    return backbone
