"""The options of `croc segment`. Nothing here imports torch, so that --help answers at once."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from croc.config import SHARE_BELOW_ONE, Section, at_least, parse
from croc.eval.protocols import (
    DEFAULTS,
    InContextConfig,
    LinearConfig,
    by_epochs_or_steps,
    given_kind,
    given_value,
)

Count = Annotated[int, at_least(1)]
Words = Annotated[tuple[str, ...], tyro.conf.Positional]


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Section):
    """Listed after the options of a command."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type to run on."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the backbone; auto is bfloat16 on a GPU and float32 on the CPU."""
    workers: Annotated[int | None, at_least(0)] = None
    """Data loading workers; by default one per CPU core, at most 16."""


@dataclass(frozen=True, kw_only=True)
class FitPart(Section):
    weights: str
    """The backbone, as for `croc evaluate`."""
    data: str
    """KIND:PATH as for `croc evaluate`, such as folder:LABELED with images/train/NAME.jpg and
    labels/train/NAME.png, and the names of the classes in classes.txt."""
    to: str
    """New folder for the head."""
    kind: Literal["linear", "incontext"] = "linear"
    """linear: train one layer. incontext: store the labeled patches; nothing is trained."""
    hold_out: Annotated[float | None, SHARE_BELOW_ONE] = None
    """Score on this fraction of the images, after training on the rest; then train on all of them.
    0: do not score. By default 0.2 of 50 images or more; of fewer, each half is scored after
    training on the other."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(MachineOptions, FitPart):
    """Train a head on labeled images, as `croc evaluate linear` or `incontext` does; a few images
    suffice, and pixels labeled 255 are left out. With fewer than 30 images, training is shorter
    unless --linear.steps is passed. Defaults depend on the data: give --data to see them."""


@dataclass(frozen=True, kw_only=True)
class PredictPart(Section):
    head: Annotated[str, tyro.conf.Positional]
    """Folder of `croc segment fit` or `croc segment discover`."""
    photos: Words
    """Folders, searched recursively, and files."""
    to: str
    """Folder for the masks NAME.png, in subfolders as the photographs are: 8-bit with a palette,
    values are indices of classes."""
    overlays: bool = False
    """Write overlays/NAME.jpg too: photographs tinted by class, at most 1280 px long."""
    probabilities: bool = False
    """Write probabilities/NAME.npz too: float16 "classes rows columns", one value per patch."""
    rle: bool = False
    """Write masks.json too: all masks in COCO's format, run-length encoded."""
    edges: Literal["plain", "guided"] = "plain"
    """plain: class scores are interpolated bilinearly. guided: they also follow the photograph's
    edges (guided filter)."""
    tile_px: Annotated[int | None, at_least(1)] = None
    """For large photographs: keep their resolution and segment overlapping tiles of this side
    length, whose scores are blended. By default the whole photograph is resized as in training."""
    batch: Count = 8
    """Photographs, or tiles, that pass through the network together."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(MachineOptions, PredictPart):
    """Write a mask for every photograph. Masks that are complete are not made again: the same
    command resumes."""


@dataclass(frozen=True, kw_only=True)
class DiscoverPart(Section):
    photos: Words
    """Folders, searched recursively, and files."""
    weights: str
    """The backbone, as for `croc evaluate`."""
    classes: Annotated[int, at_least(2)]
    """Number of clusters."""
    to: str
    """New folder: the head, masks/ and clusters/."""
    image_px: Count = 448
    """Photographs are resized to a square of this side length."""
    blocks: Count = 1
    """Number of final ViT blocks whose tokens are concatenated."""
    restarts: Count = 5
    """K-means restarts; the best is kept."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed for drawing the patches that K-means is fitted to, and for K-means."""
    overlays: bool = False
    """Write masks/overlays/NAME.jpg too."""
    batch: Count = 8
    """Photographs that pass through the network together."""


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(MachineOptions, DiscoverPart):
    """Segment photographs without labels: K-means of their features, a mask for each photograph,
    and a sheet of examples of each cluster. The folder is also a head for `croc segment predict`;
    to name the clusters, edit `classes` in its head.json."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Section):
    """Write the backbone and the head as one network, from RGB images in 0 … 1 to class maps; it
    runs without CrOC."""

    head: Annotated[str, tyro.conf.Positional]
    """Folder of `croc segment fit` or `croc segment discover`."""
    to: str
    """NAME.onnx for ONNX Runtime, or NAME.pt2 for `torch.export.load`."""


def parse_fit(arguments: list[str]) -> tuple[FitOptions, LinearConfig | InContextConfig, bool]:
    """The options, those of the kind of head, and whether the length of training was chosen."""
    kind = given_value(arguments, "--kind")
    kind = kind if kind == "incontext" else "linear"
    config = DEFAULTS[kind](given_kind(arguments))
    flags = {word.partition("=")[0] for word in arguments}
    if kind == "linear":
        config = by_epochs_or_steps(config, flags)
    fields: Any = [(kind, type(config), dataclasses.field(default=config))]
    options = dataclasses.make_dataclass(
        "Fit", fields, bases=(FitOptions,), frozen=True, kw_only=True
    )
    options.__doc__ = FitOptions.__doc__
    parsed = parse(options, arguments, "croc segment fit")
    return (
        parsed,
        getattr(parsed, kind),
        not flags.isdisjoint(("--linear.steps", "--linear.epochs")),
    )
