"""What our files say about themselves in their metadata: the network, and how it was trained."""

import json
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import timm
import torch
import typeguard
from torch import Tensor, nn

from croc.config import ModelConfig, PretrainConfig
from croc.errors import UserError
from croc.method.backbone import Backbone, Vit
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.files import first_line, read_metadata, read_named_tensors
from croc.weights.layouts import check_finite, fill

FORMAT = 1
MAX_PX, MAX_BLOCKS = 4_096, 1_000
LICENSE = "not stated; the training images have licenses of their own"
UNSAFE_OPTIONS = ("pretrained", "checkpoint", "cache", "path", "dir", "url")
"""Parts of the names of options by which timm would read other files."""
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class TimmModel:
    """Arguments of `timm.create_model`: the record of weights that no run of ours trained."""

    KEY: ClassVar = "croc.network"
    architecture: str
    options: dict[str, str | int | float | bool | None]
    mean: list[float] = field(default_factory=lambda: list(IMAGENET_MEAN))
    std: list[float] = field(default_factory=lambda: list(IMAGENET_STD))

    def __post_init__(self) -> None:
        if any(part in name for name in self.options for part in UNSAFE_OPTIONS):
            raise ValueError("its options name other files")
        if not len(self.mean) == len(self.std) == 3 or min(self.std) <= 0:
            raise ValueError("its mean and std are not those of RGB")
        if not timm.is_model(self.architecture):
            raise ValueError(f"timm has no model {self.architecture!r}")

    def build(self) -> nn.Module:
        """The network in timm's own layers, with initial weights."""
        with torch.random.fork_rng(devices=[]):
            options: dict[str, Any] = self.options
            network: Any = timm.create_model(self.architecture, pretrained=False, **options)
        norm_patches(network)
        return network


def timm_vit(model: str, patch_px: int, depth: int, image_px: int) -> TimmModel:
    """A ViT with a class token and no head, for images of any size."""
    sizes = {"img_size": image_px, "patch_size": patch_px, "depth": depth}
    fixed = {"num_classes": 0, "global_pool": "token", "dynamic_img_size": True}
    return TimmModel(model, {**sizes, **fixed})


def norm_patches(network: Any) -> None:
    """Apply the final norm to the patches of a ViT that would only norm the pooled token."""
    if isinstance(network, Vit) and isinstance(network.norm, nn.Identity):
        network.norm, network.fc_norm = network.fc_norm, network.norm


@dataclass(frozen=True)
class RunRecord:
    """The record of a run's backbone. The first four values are enough to build the network, even
    if a later version cannot read `config`."""

    KEY: ClassVar = "croc"
    model: str
    """timm's name."""
    patch_px: int
    depth: int
    image_px: int
    """The image size of the position embedding, which is resampled for others."""
    recipe: str
    method: str
    network: str
    """The teacher, or the student if the method has no teacher."""
    data: list[str]
    """The names of the data, without their folders."""
    step: int
    images_seen: int
    epochs: float
    seconds: float | None
    """Training time, if known."""
    license: str
    config: dict[str, Any]
    """The run's config.json, without paths."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"it has format {self.format}, this version reads {FORMAT}")
        is_possible = 1 <= self.patch_px <= self.image_px <= MAX_PX
        if not is_possible or not 1 <= self.depth <= MAX_BLOCKS:
            raise ValueError("its patches, images or blocks are of impossible size")

    @property
    def timm_model(self) -> TimmModel:
        """The same network in timm's own layers."""
        return timm_vit(self.model, self.patch_px, self.depth, self.image_px)


Record = RunRecord | TimmModel
"""Where a network came from, and what it can be built from again."""


def metadata(record: Record) -> dict[str, str]:
    """For the header of a safetensors file; other readers expect the format "pt"."""
    return {"format": "pt", record.KEY: json.dumps(asdict(record))}


def read_record(path: Path) -> Record | None:
    """None for files of other projects; unknown keys are ignored."""
    header = read_metadata(path)
    kind = next((kind for kind in (RunRecord, TimmModel) if kind.KEY in header), None)
    if kind is None:
        return None
    try:
        values, hints = json.loads(header[kind.KEY]), typing.get_type_hints(kind)
        if "licence" in values:  # its name in earlier versions
            values.setdefault("license", values["licence"])
        names = [each.name for each in fields(kind) if each.name in values]
        return kind(**{name: typeguard.check_type(values[name], hints[name]) for name in names})
    except (ValueError, LookupError, TypeError, RecursionError, typeguard.TypeCheckError) as error:
        raise UserError(
            f"the metadata of {path} cannot be read ({first_line(error)}): export it again"
        ) from None


def build_recorded(path: Path, record: RunRecord) -> Backbone:
    """The run's backbone with the weights in the file."""
    model = ModelConfig(record.model, patch_px=record.patch_px, depth=record.depth)
    return build(lambda: Backbone(model, record.image_px), read_named_tensors(path), str(path))


def build(make: Callable[[], Network], weights: dict[str, Tensor], source: str) -> Network:
    """Make a network and fill it with weights. It is tried on the meta device first, because a
    small file can describe a network that does not fit in memory."""
    check_finite(weights, source)
    with torch.random.fork_rng(devices=[]):  # timm's initial values are overwritten
        try:
            with torch.device("meta"):
                skeleton = make()
        except Exception as error:  # whatever timm raises for options that do not fit
            reason = first_line(error)
            raise UserError(
                f"{source} describes a network that cannot be built: {reason}"
            ) from None
        fill(skeleton, weights, source)
        network = make()
    fill(network, weights, source)
    return network


def without_paths(config: PretrainConfig) -> PretrainConfig:
    """Without the paths of the machine that trained, which are private."""
    init = config.model.init
    return replace(
        config,
        data=replace(config.data, root=tuple(map(without_folder, config.data.root))),
        model=replace(config.model, init=None if init is None else without_folder(init)),
        run=replace(config.run, folder=None, stop_after_steps=None),
    )


def without_folder(spec: str) -> str:
    """The last part of a path, also of FILE in timm:NAME@FILE; hf:USER/NAME stays as it is."""
    if spec.startswith("hf:"):
        return spec
    name, at, file = spec.partition("@") if spec.startswith("timm:") else ("", "", spec)
    return name + at + (Path(file).name or file)
