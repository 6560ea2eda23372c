"""How timm builds a network, in the metadata of its file: for weights without a run's record."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import typeguard
from torch import nn

from croc.errors import UserError
from croc.method.backbone import Vit
from croc.weights.files import first_line, read_metadata, read_named_tensors
from croc.weights.layouts import check_finite, fill

KEY = "croc.network"
REFUSED = ("pretrained", "checkpoint", "cache", "path", "dir", "url")
"""Options by which timm would read other files."""


@dataclass(frozen=True)
class Blueprint:
    """Arguments of `timm.create_model`."""

    architecture: str
    options: dict[str, str | int | float | bool | None]

    def metadata(self) -> dict[str, str]:
        return {"format": "pt", KEY: json.dumps(asdict(self))}

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # timm's initial values are overwritten
            options: dict[str, Any] = self.options
            network: Any = timm.create_model(self.architecture, pretrained=False, **options)
        norm_patches(network)
        return network


def norm_patches(network: Any) -> None:
    """A ViT made for pooled tokens norms them later: it gets that norm for its patches."""
    if isinstance(network, Vit) and isinstance(network.norm, nn.Identity):
        network.norm, network.fc_norm = network.fc_norm, network.norm


def read_blueprint(path: Path) -> Blueprint | None:
    """None for a file that has none."""
    text = read_metadata(path).get(KEY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        blueprint = Blueprint(values["architecture"], values["options"])
        typeguard.check_type(blueprint.options, dict[str, str | int | float | bool | None])
        if any(part in name for name in blueprint.options for part in REFUSED):
            raise ValueError("its options name other files")
        if blueprint.architecture.partition(".")[0] not in timm.list_models():
            raise ValueError(f"timm has no model {blueprint.architecture}")
    except (ValueError, TypeError, KeyError, RecursionError, typeguard.TypeCheckError) as error:
        raise UserError(f"the metadata of {path} cannot be read ({first_line(error)})") from None
    return blueprint


def build_network(path: Path, blueprint: Blueprint) -> nn.Module:
    """Filled from the file; first sketched without memory, as it may be larger than its file."""
    weights = read_named_tensors(path)
    check_finite(weights, str(path))
    try:
        with torch.device("meta"):
            sketch = blueprint.build()
        fill(sketch, weights, str(path), resample=False)
        network = blueprint.build()
    except UserError:
        raise
    except Exception as error:  # whatever timm raises for options that do not fit
        raise UserError(f"{path}: its network cannot be built ({first_line(error)})") from None
    fill(network, weights, str(path), resample=False)
    return network
