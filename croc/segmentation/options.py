"""The options of `croc segment`. Nothing here imports torch, so that --help is fast."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from croc.config import SHARE_BELOW_ONE, Section, at_least
from croc.eval.protocols import (
    FewLabelConfig,
    InContextConfig,
    LinearConfig,
    data_kind,
    default_config,
    flag_names,
    flag_value,
    parse_options,
)

Count = Annotated[int, at_least(1)]
Images = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="IMAGES ..."),
]


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Section):
    """Options that follow those of a command in its help."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type to run on."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the backbone; auto is bfloat16 on GPUs and on CPUs with bfloat16 instructions
    (AVX512-BF16, AMX), and float32 on others."""
    workers: Annotated[int | None, at_least(0)] = None
    """Data loading workers; by default one per CPU core, at most 16."""


@dataclass(frozen=True, kw_only=True)
class FitPart(Section):
    weights: str
    """The backbone, as for `croc evaluate`."""
    data: str
    """KIND:PATH as for `croc evaluate`, such as folder:LABELED with images/train/NAME.jpg,
    labels/train/NAME.png and the class names in classes.txt."""
    to: str
    """New folder for the head."""
    kind: Literal["linear", "incontext"] = "linear"
    """linear: train one layer. incontext: store the labeled patches; nothing is trained."""
    hold_out: Annotated[float | None, SHARE_BELOW_ONE] = None
    """Fraction of the images to score after training on the others; the final head is then trained
    on all images. 0 skips scoring. By default 0.2 with 50 images or more, and two-fold
    cross-validation with fewer."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(MachineOptions, FitPart):
    """Make a segmentation head from a few labeled images, like `croc evaluate linear` or
    `incontext`. Pixels labeled 255 are ignored. Like `croc evaluate fewlabel`, a linear head is
    trained with weight decay, and with fewer than 30 images for fewer steps (unless you pass
    --linear.steps). Defaults depend on the dataset in --data."""


@dataclass(frozen=True, kw_only=True)
class PredictPart(Section):
    head: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HEAD")]
    """Output folder of `croc segment fit` or `croc segment discover`."""
    images: Images
    """Image files or folders (searched recursively)."""
    to: str
    """Output folder for the masks: 8-bit palette PNGs whose pixel values are class indices, in the
    same subfolders as the images."""
    overlays: bool = False
    """Also write overlays/NAME.jpg: images tinted by class, at most 1280 px on the longer side."""
    probabilities: bool = False
    """Also write probabilities/NAME.npz: float16, classes × rows × columns, one value per patch."""
    rle: bool = False
    """Also write masks.json: all masks in COCO's run-length encoding."""
    upsampling: Literal["bilinear", "guided"] = "bilinear"
    """bilinear: interpolate the class scores. guided: also follow the image's edges
    (guided filter)."""
    tile_px: Annotated[int | None, at_least(1)] = None
    """For large images: keep the resolution and segment overlapping tiles of this side length,
    whose scores are blended. By default the whole image is resized as in training."""
    batch: Count = 8
    """Images, or tiles, per forward pass."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(MachineOptions, PredictPart):
    """Write a mask for every image. Rerun the same command to resume; finished masks are kept."""


@dataclass(frozen=True, kw_only=True)
class DiscoverPart(Section):
    images: Images
    """Image files or folders (searched recursively)."""
    weights: str
    """The backbone, as for `croc evaluate`."""
    classes: Annotated[int, at_least(2)]
    """Number of clusters (K of K-means)."""
    to: str
    """Output folder for the head, masks/ and clusters/; rerun to complete the masks."""
    image_px: Count = 448
    """Images are resized to a square of this side length."""
    blocks: Count = 1
    """Number of ViT blocks, counted from the last, whose tokens are concatenated."""
    restarts: Count = 5
    """K-means restarts; the best is kept."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed for K-means and for sampling the patches that it is fitted to."""
    overlays: bool = False
    """Also write masks/overlays/NAME.jpg."""
    batch: Count = 8
    """Images per forward pass."""


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(MachineOptions, DiscoverPart):
    """Segment images without labels: cluster their features with K-means, write a mask for each
    image and a sheet of examples for each cluster. The output folder is also a head for `croc
    segment predict`; to name the clusters, edit `classes` in its head.json."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Section):
    """Write the backbone and the head as one network that maps RGB images in [0, 1] to class maps
    and runs without CrOC."""

    head: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HEAD")]
    """Output folder of `croc segment fit` or `croc segment discover`."""
    to: str
    """NAME.onnx for ONNX Runtime, or NAME.pt2 for `torch.export.load`."""


def parse_fit(arguments: list[str]) -> tuple[FitOptions, LinearConfig | InContextConfig, bool]:
    """The options, the configuration of the head, and whether the user set the training length."""
    kind = flag_value(arguments, "--kind")
    kind = kind if kind == "incontext" else "linear"
    flags = flag_names(arguments)
    config = default_config(kind, data_kind(arguments), flags)
    if kind == "linear":
        config = dataclasses.replace(config, weight_decay_scale=FewLabelConfig.weight_decay_scale)
    options = parse_options(FitOptions, {kind: config}, arguments, "croc segment fit")
    is_length_chosen = not flags.isdisjoint(("--linear.steps", "--linear.epochs"))
    return options, getattr(options, kind), is_length_chosen
