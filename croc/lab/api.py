"""What `import croc` offers: thin functions over what the command line calls.

Invalid arguments raise a `UserError` with a one-line message that names the nearest option.
"""

import dataclasses
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int, Int64
from PIL import Image
from torch import Tensor

from croc.config import METHODS, PAGE, ClusterConfig, PretrainConfig, read_config
from croc.errors import AskedToEnd, UserError
from croc.eval.evaluate import Request
from croc.eval.evaluate import evaluate as evaluate_requests
from croc.eval.protocols import (
    DEFAULTS,
    PROTOCOLS,
    EvaluateOptions,
    by_epochs_or_steps,
    protocols_of,
)
from croc.eval.results import Result
from croc.io import read_metrics
from croc.lab.api_input import change, check_cluster_input, check_names, read_image, weights_name
from croc.lab.show.look import resize, whole_patches
from croc.method.clustering import cluster as cluster_joined
from croc.method.photometric import normalise
from croc.method.types import Clusters
from croc.recipes import RECIPES
from croc.weights import open as weights_open
from croc.weights.open import ConvBackbone, VitBackbone, check_fit

Weights = str | os.PathLike[str]
Photograph = str | os.PathLike[str] | Image.Image | Tensor
Roots = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Protocol = Literal["linear", "kmeans", "within", "incontext", "video"]
MOST_DEFAULT_PX = 448
SHORT = {"init": "model", "resume": "run", "folder": "run"}
"""Options of `pretrain` that are given without their section, and that section."""


def load_backbone(weights: Weights) -> VitBackbone | ConvBackbone:
    """Open a backbone, frozen and in float32, on the CPU.

    Args:
        weights: What `--weights` takes: a run or its folder (its teacher is opened), one of its
            checkpoints, a file of weights, the name of shipped weights, `timm:NAME` for a model
            with timm's own weights, or `random:NAME` for an untrained one.

    Returns:
        A module with `name`, `stride_px` (the side of a patch) and `features(images)`, which
            takes "B 3 h w" normalized with ImageNet's mean and std and returns
            "B C rows columns". `croc.features` does the reading and normalising for you.

    Examples:
        >>> import croc, torch
        >>> backbone = croc.load_backbone("random:vit_tiny_patch16_224")
        >>> backbone.stride_px
        16
        >>> backbone.features(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 192, 4, 6])
    """
    return weights_open.load_backbone(weights_name(weights))


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """The features of one photograph, on the CPU in float32."""

    patches: Float[Tensor, "rows columns D"]
    """The last block's patch tokens, after the final norm."""
    cls: Float[Tensor, "D"] | None
    """The CLS token; None for a network without one, such as a ConvNet."""
    size_px: tuple[int, int]
    """Height and width of the photograph itself, upright."""

    def centres_px(self) -> Float[Tensor, "rows columns 2"]:
        """(x, y) of each patch's center, in the photograph's own pixels."""
        (rows, columns), (height, width) = self.patches.shape[:2], self.size_px
        y = (torch.arange(rows) + 0.5) * height / rows
        x = (torch.arange(columns) + 0.5) * width / columns
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)

    def patch_at(self, x: float | int, y: float | int) -> tuple[int, int]:
        """Row and column of the patch that contains a pixel of the photograph."""
        (rows, columns), (height, width) = self.patches.shape[:2], self.size_px
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f"{x:g}, {y:g} is outside the photograph of {width} × {height} px")
        return int(y * rows / height), int(x * columns / width)

    def __repr__(self) -> str:
        rows, columns, width = self.patches.shape
        cls = "no cls" if self.cls is None else "cls"
        height_px, width_px = self.size_px
        return f"Features({rows} × {columns} × {width}, {cls}, of {width_px} × {height_px} px)"


@torch.no_grad()
def features(
    images: Photograph | Iterable[Photograph],
    weights: Weights | VitBackbone | ConvBackbone,
    *,
    size_px: int | Sequence[int] | None = None,
    batch: int = 8,
    device: str | int | torch.device | None = None,
) -> list[Features]:
    """Dense features of photographs: for each a grid of patch tokens, and its CLS token.

    Photographs are turned upright, resized bicubically and normalised. By default their aspect
    ratio is kept, so that the grids of two photographs may differ.

    Args:
        images: One photograph or several: paths, PIL images, or tensors "3 h w" or "B 3 h w" in
            RGB, of bytes or of floats in 0 … 1 (not normalised). An iterator is read `batch`
            photographs at a time.
        weights: What `croc.load_backbone` takes, or what it returned.
        size_px: A number is the longer side of what the network sees: the aspect ratio is kept,
            both sides are rounded to whole patches. A pair (height, width) is that size for all,
            the ratio is not kept, and patches must divide it. By default the longer side is 448,
            or twice the network's own where that is less.
        batch: Photographs that are read at a time, and pass through the network together where
            their sizes are the same.
        device: Where to compute; a number is that GPU. By default on a GPU if there is one, and
            for an open backbone where it is; with a device it is moved there.

    Returns:
        One `Features` per photograph, in order. They stay in memory, 4 bytes per value: 28 × 28
            patches of ViT-S (D = 384) take 1.2 MB, ten thousand such photographs 12 GB. For more
            than fit, call it for a part at a time.

    Examples:
        >>> import croc
        >>> from PIL import Image
        >>> photograph = Image.new("RGB", (300, 200), "olive")
        >>> (olive,) = croc.features(photograph, "random:vit_tiny_patch16_224", size_px=96)
        >>> olive
        Features(4 × 6 × 192, cls, of 300 × 200 px)
        >>> olive.patches[olive.patch_at(x=299, y=0)].shape
        torch.Size([192])
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1: {batch}")
    if isinstance(weights, VitBackbone | ConvBackbone):
        backbone = weights
    else:
        backbone = weights_open.load_backbone(weights_name(weights))
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
    if device is not None:
        backbone.to(device)
    one = isinstance(images, str | os.PathLike | Image.Image)
    if one or (isinstance(images, Tensor) and images.ndim != 4):
        images = [images]
    remaining = iter(images)
    described: list[Features] = []
    while some := list(islice(remaining, batch)):  # an iterator may open a file for each
        resized, sizes = [], []
        for image in some:  # one whole photograph in memory at a time
            pixels = read_image(image)
            sizes.append((pixels.shape[1], pixels.shape[2]))
            resized.append(resize(pixels, _input_size(backbone, sizes[-1], size_px)))
        tokens: dict[int, Any] = {}
        for shape in {pixels.shape for pixels in resized}:
            alike = [number for number, pixels in enumerate(resized) if pixels.shape == shape]
            tokens |= zip(alike, _tokens(backbone, torch.stack([resized[n] for n in alike])))
        for number, size in enumerate(sizes):
            patches, cls = tokens[number]
            described.append(Features(patches, cls, size))
    return described


def _input_size(
    backbone: VitBackbone | ConvBackbone, size: tuple[int, int], size_px: Any
) -> tuple[int, int]:
    """Height and width of what the network sees."""
    stride = backbone.stride_px
    if size_px is None:
        own = backbone.vit.patch_embed.img_size if isinstance(backbone, VitBackbone) else None
        size_px = min(MOST_DEFAULT_PX, 2 * max(own)) if own else MOST_DEFAULT_PX
    if isinstance(size_px, Integral):
        if int(size_px) < stride:
            raise UserError(f"size_px {size_px}: one patch of {backbone.name} is {stride} px")
        return whole_patches(size, int(size_px), stride)
    height, width = size_px
    for side in (height, width):
        check_fit(backbone, side, flag="size_px: images")
    return height, width


def _tokens(
    backbone: VitBackbone | ConvBackbone, pixels: Float[Tensor, "B 3 h w"]
) -> list[tuple[Float[Tensor, "rows columns D"], Float[Tensor, "D"] | None]]:
    """Patch tokens and CLS token of each image."""
    images = normalise(pixels.to(next(backbone.parameters()).device))
    if isinstance(backbone, ConvBackbone):
        maps = backbone.features(images).permute(0, 2, 3, 1).float().cpu()
        return [(each.clone(), None) for each in maps]
    vit, stride = backbone.vit, backbone.stride_px
    tokens = vit.forward_features(images.to(vit.patch_embed.proj.weight.dtype)).float().cpu()
    grid = (pixels.shape[2] // stride, pixels.shape[3] // stride)
    patches = tokens[:, vit.num_prefix_tokens :].unflatten(1, grid)
    has_cls = vit.cls_token is not None
    return [(own.clone(), t[0].clone() if has_cls else None) for own, t in zip(patches, tokens)]


def cluster(
    tokens: Float[Tensor, "B H T d"],
    positions: Float[Tensor, "B T 2"],
    saliency: Float[Tensor, "B H T"],
    config: ClusterConfig | None = None,
    *,
    views: int = 2,
    seeds: Int[Tensor, "B H K"] | None = None,
    keys: Int64[Tensor, "B"] | None = None,
) -> Clusters:
    """Cluster the joined tokens of an image's views by optimal transport, and choose K.

    This is what a training step does with the teacher's tokens: centroids start at some of the
    tokens, the nearest two merge until two are left, and the K of the lowest transport cost is
    chosen, for each image and head separately. Checking the arguments synchronizes with the GPU.

    Args:
        tokens: B images, H heads, T tokens of width d: all tokens of the first view, then those
            of the next. They need not have unit length.
        positions: (x, y) of each token in the frame of the original image, whose longer side is
            1; tokens of two views that show the same place are close to each other in it.
        saliency: The weight of each token; over the tokens of an image and head it sums to 1
            (in the variant `released` it is the cosine with the CLS token of the token's view).
        config: `ClusterConfig`: K at the start, the weight of positions, the variant, and more.
        views: The number of views that the tokens come from; 1 clusters a whole image.
        seeds: The tokens at which the centroids start, `config.k_start` different ones for each
            image and head.
        keys: One number per image, from which the starting tokens are drawn if there are no
            `seeds`; by default 0, 1, 2, …

    Returns:
        `Clusters`: `assignments` "M B H N K" (soft, padded with zeros to K_start), `valid`
            "B H K" (the clusters that every view has), `cost` and the chosen `count` "B H".

    Examples:
        >>> import croc, torch
        >>> tokens = torch.randn(1, 6, 2 * 49, 64)            # two views of 7 × 7 patches
        >>> positions = torch.rand(1, 2 * 49, 2)
        >>> saliency = torch.full((1, 6, 2 * 49), 1 / (2 * 49))
        >>> clusters = croc.cluster(tokens, positions, saliency, croc.ClusterConfig(k_start=8))
        >>> clusters.assignments.shape                        # view, image, head, patch, cluster
        torch.Size([2, 1, 6, 49, 8])
        >>> bool((clusters.count >= clusters.valid.sum(dim=-1)).all())
        True
    """
    config = config or ClusterConfig()
    tensors = {"tokens": tokens, "positions": positions, "saliency": saliency}
    check_cluster_input(tensors | {"seeds": seeds, "keys": keys}, config, views)
    if seeds is None and keys is None:
        keys = torch.arange(len(tokens), device=tokens.device)
    keys = None if keys is None else keys.long()
    return cluster_joined(tokens, positions, saliency, config, views=views, seeds=seeds, keys=keys)


@dataclass(frozen=True, init=False)
class Run:
    """A run's folder, finished or not: `croc.Run("runs/demo")` opens an existing one."""

    folder: Path
    """With config.json, metrics.jsonl, report.html, checkpoints/ and tensorboard/."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not (self.folder / PAGE).is_file():
            raise UserError(f"{self.folder} holds no run: give a folder that croc pretrain wrote")

    @property
    def config(self) -> PretrainConfig:
        """All settings, as in the run's config.json."""
        return read_config(self.folder / PAGE)[0]

    def metrics(self) -> list[dict[str, float | int]]:
        """The lines of metrics.jsonl: step, epoch, losses, entropies, mean K, images/s and more."""
        return read_metrics(self.folder)

    def __fspath__(self) -> str:
        """Its folder: a run can be passed wherever a path or weights can."""
        return str(self.folder)

    def backbone(self) -> VitBackbone:
        """The teacher's backbone of the last checkpoint, frozen: `croc.load_backbone(folder)`."""
        backbone = load_backbone(self.folder)
        assert isinstance(backbone, VitBackbone)  # no other can be trained
        return backbone


def pretrain(
    recipe: str | PretrainConfig,
    *,
    data: Roots | Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Pre-train a backbone, or resume the run in the folder.

    Progress is printed to stderr, as on the command line. Ctrl-C, or a notebook's stop button,
    saves a checkpoint first and then raises KeyboardInterrupt; the same call resumes from there.
    In a thread other than the main one no signals arrive, and the run continues to its end.

    In a notebook, or wherever Python is interactive, a run takes one GPU unless
    `run={"devices": …}` is given: from there Lightning cannot start one process per GPU.

    Args:
        recipe: A recipe's name, such as "coco-vits16" or "demo", or a whole configuration.
        data: Where the photographs are: a folder of images at any depth, several of them, tar
            shards, or the word "scenes" for synthetic ones. By default the recipe's own. Or the
            section's options as below, with these as `root`.
        folder: Where the run is written; by default runs/RECIPE. A folder with other contents
            is refused, never overwritten.
        options: All other options of `croc pretrain`, section by section: what the command line
            calls `--optim.epochs 3 --optim.batch 64` is `optim={"epochs": 3, "batch": 64}`.
            `init` and `resume` have no section, as there.

    Returns:
        The `Run`. With several processes, each of them returns it: a script that evaluates next
            would do so in each, unless it trains with `run={"devices": 1}`.

    Raises:
        AskedToEnd: After a checkpoint, on SIGTERM or SIGUSR1, as sent by cluster schedulers;
            `sys.exit(error.exit_code)` tells a scheduler to restart the job.

    Examples:
        >>> import croc
        >>> croc.pretrain("coco-vits16", data="photographs", optim={"epoch": 3})
        Traceback (most recent call last):
        croc.errors.UserError: there is no option optim.epoch; perhaps you meant optim.epochs

        A run of two steps on synthetic scenes:

        >>> short = {"stop_after_steps": 2, "report": False}
        >>> run = croc.pretrain("demo", folder="runs/short", data={"scenes": 48}, run=short)
        >>> [line["step"] for line in run.metrics()]
        [1, 2]
        >>> run.backbone().stride_px
        8
    """
    if isinstance(recipe, str):
        check_names([recipe], RECIPES, noun="recipe")
        config, name = RECIPES[recipe](), recipe
    elif type(recipe) in METHODS.values():
        config, name = recipe, "custom"
    else:
        kinds = ", ".join(kind.__name__ for kind in METHODS.values())
        raise UserError(f"a {type(recipe).__name__} is no recipe: give its name, or one of {kinds}")
    if data is not None:
        options["data"] = data if isinstance(data, Mapping) else {"root": data}
    if folder is not None:
        options["folder"] = os.fspath(folder)
    config = _configure(config, options)
    from lightning_fabric.utilities import imports

    if config.run.devices == "auto" and imports._IS_INTERACTIVE:  # Lightning refuses more there
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, devices=1))
    from croc.lab.report.hook import ReportHook
    from croc.train.loop import pretrain as train

    try:
        with torch.random.fork_rng(devices=[]):  # training must not change the caller's numbers
            return Run(train(config, name, ReportHook))
    except AskedToEnd as error:
        if error.number == signal.SIGINT:
            raise KeyboardInterrupt(str(error)) from None
        raise


def _configure(config: PretrainConfig, options: Mapping[str, Any]) -> PretrainConfig:
    """The configuration with all changes of a section made together."""
    check_names(options, [*(field.name for field in dataclasses.fields(config)), *SHORT])
    sections: dict[str, dict[str, Any]] = {}
    for name, values in options.items():
        if name not in SHORT and not isinstance(values, Mapping):
            raise UserError(
                f"{name} takes its options by their names: {name}={{…}}, not {values!r}"
            )
        section = sections.setdefault(SHORT.get(name, name), {})
        for field, value in ({name: values} if name in SHORT else values).items():
            if field in section:
                raise UserError(f"{SHORT.get(name, name)}.{field} is given twice")
            section[field] = value
    if "root" in sections.get("data", {}):
        root = sections["data"]["root"]
        several = [root] if isinstance(root, str | os.PathLike) else root
        sections["data"]["root"] = tuple(os.fspath(each) for each in several)
    changed = {
        name: change(getattr(config, name), new, f"{name}.") for name, new in sections.items()
    }
    return dataclasses.replace(config, **changed)


@overload
def evaluate(protocol: Protocol, weights: Weights, data: str, **options: Any) -> Result: ...
@overload
def evaluate(
    protocol: Literal["all"], weights: Weights, data: str, **options: Any
) -> list[Result]: ...
def evaluate(
    protocol: str,
    weights: Weights,
    data: str,
    *,
    results: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    workers: int | None = None,
    hold_out: float = 0.0,
    **options: Any,
) -> Result | list[Result]:
    """Score frozen dense features by one protocol, or by all that the data support.

    Progress is printed to stderr.

    Args:
        protocol: "linear" (a linear layer on the features), "kmeans" (clusters matched to
            classes), "within" (the same in each image separately), "incontext" (labels of the
            nearest neighbours), "video" (a first mask propagated), or "all".
        weights: What `croc.load_backbone` takes, not what it returned: a result records where
            weights came from. A run or its folder is its teacher.
        data: KIND:PATH, such as "voc12:/data/VOC2012" or "folder:mine" for your own photographs
            and label maps (docs/evaluate.md), or "scenes", which needs no path.
        results: The folder whose results.jsonl gets a line, and whose pictures/ a picture of
            predictions; by default nothing is written.
        device: What to compute on; "auto" is a GPU if there is one.
        precision: Of the backbone; "auto" is bfloat16 on a GPU and float32 on the CPU.
        workers: Decoding processes; by default one per core, at most 16.
        hold_out: Score this fraction of the training split instead of the validation split, for
            model selection.
        options: The protocol's settings by their names, such as `steps=300` for what the command
            line calls `--linear.steps`. The defaults are those of the data set's papers.

    Returns:
        A `Result`, for "all" a list of them: `scores` by name in percent, the one that papers
            report first; `classes`, the IoU of each; `config`, all settings; and more.

    Examples:
        >>> import croc
        >>> weights = "random:vit_tiny_patch16_224"
        >>> result = croc.evaluate("linear", weights, "scenes:4", steps=2, workers=0)
        >>> list(result.scores), len(result.classes)
        (['mIoU', 'accuracy'], 13)
        >>> croc.evaluate("linear", weights, "scenes", step=2)
        Traceback (most recent call last):
        croc.errors.UserError: there is no option step; perhaps you meant steps
    """
    check_names([protocol], [*PROTOCOLS, "all"], noun="protocol")
    if not isinstance(data, str):
        raise UserError(f"data are KIND:PATH, such as 'folder:mine', not {data!r}")
    machine = {"device": device, "precision": precision, "workers": workers, "hold_out": hold_out}
    request = change(EvaluateOptions(weights_name(weights), data), machine)
    allowed = protocols_of(data, hold_out)
    if protocol == "all" and options:
        raise UserError(f"to change {', '.join(options)}, name one protocol instead of all")
    if protocol not in ("all", *allowed):
        raise UserError(f"{protocol} cannot be scored on {data}, it allows {', '.join(allowed)}")
    requests = []
    for name in allowed if protocol == "all" else (protocol,):
        settings = DEFAULTS[name](data.partition(":")[0])
        if name == "linear":
            settings = by_epochs_or_steps(settings, {f"--linear.{each}" for each in options})
        settings = change(settings, options)
        adapts = protocol == "all"
        requests.append(Request(name, data, settings, adapts=adapts, hold_out=hold_out))
    with TemporaryDirectory(prefix="croc-") as nowhere:
        to = nowhere if results is None else os.fspath(results)
        scored = evaluate_requests(dataclasses.replace(request, to=to), requests, show=False)
    if results is None:
        scored = [dataclasses.replace(result, picture=None) for result in scored]
    if protocol == "all":
        return scored
    if not scored:
        raise UserError(f"{data} has no labels to score against")
    return scored[0]
