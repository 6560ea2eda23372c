"""The public Python API: thin wrappers around the functions behind the command line.

Invalid arguments raise a `UserError` with a one-line message that names the nearest option.
"""

import dataclasses
import difflib
import os
import signal
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
import typeguard
from einops import rearrange
from jaxtyping import Float, Int, Int64, jaxtyped
from PIL import Image, ImageOps
from torch import Tensor

from croc.config import CONFIG_FILE, METHODS, ClusterConfig, PretrainConfig, read_config
from croc.errors import Interrupted, UserError
from croc.eval.evaluate import Request
from croc.eval.evaluate import evaluate as evaluate_requests
from croc.eval.protocols import (
    DEFAULTS,
    PROTOCOLS,
    EvaluateOptions,
    check_protocol,
    default_config,
    protocols_of,
)
from croc.io import read_metrics
from croc.lab.show.look import patch_at, read_photograph, resize, whole_patches
from croc.method.clustering.join_split import cluster as cluster_views
from croc.method.types import Clusters
from croc.recipes import RECIPES
from croc.results import Result
from croc.segmentation.segmenter import Segmenter, load_segmenter
from croc.weights.backbones import FrozenBackbone, VitBackbone, check_fit
from croc.weights.init import follow_init
from croc.weights.open import open_backbone

Weights = str | os.PathLike[str]
Photograph = str | os.PathLike[str] | Image.Image | Tensor | np.ndarray
Roots = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Protocol = Literal["linear", "kmeans", "within", "incontext", "fewlabel", "video"]
Config = TypeVar("Config")


def load_backbone(weights: Weights) -> FrozenBackbone:
    """Load a backbone, frozen and in float32, on the CPU.

    Args:
        weights: What `--weights` takes: a run or its folder (its teacher is loaded), one of its
            checkpoints, a weights file, the name of bundled weights, `timm:NAME` for a model with
            timm's own weights, or `random:NAME` for an untrained one.

    Returns:
        A module with `name`, `stride_px` (the side of a patch) and `features(images)`, which
            takes "B 3 h w" normalized with its `mean` and `std` and returns
            "B C rows columns". `croc.features` reads and normalizes images for you.

    Examples:
        >>> import croc, torch
        >>> backbone = croc.load_backbone("random:vit_tiny_patch16_224")
        >>> backbone.stride_px
        16
        >>> backbone.features(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 192, 4, 6])
    """
    return open_backbone(os.fspath(weights), flag="load_backbone").float().eval()


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """The features of one image, on the CPU in float32."""

    patches: Float[Tensor, "rows columns D"]
    """The last block's patch tokens, after the final norm."""
    cls: Float[Tensor, "D"] | None
    """The CLS token; None for a network without one, such as a ConvNet."""
    size_px: tuple[int, int]
    """Height and width of the original image, after EXIF rotation."""

    def centers_px(self) -> Float[Tensor, "rows columns 2"]:
        """(x, y) of each patch's center, in pixels of the original image."""
        (rows, columns), (height, width) = self.patches.shape[:2], self.size_px
        y = (torch.arange(rows) + 0.5) * height / rows
        x = (torch.arange(columns) + 0.5) * width / columns
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)

    def patch_at(self, x: float | int, y: float | int) -> tuple[int, int]:
        """Row and column of the patch that contains a pixel of the original image."""
        return patch_at(x, y, self.size_px, self.patches.shape[:2])

    def __repr__(self) -> str:
        rows, columns, width = self.patches.shape
        cls = "no cls" if self.cls is None else "cls"
        height_px, width_px = self.size_px
        return f"Features({rows} × {columns} × {width}, {cls}, of {width_px} × {height_px} px)"


@torch.no_grad()
def features(
    images: Photograph | Iterable[Photograph],
    weights: Weights | FrozenBackbone,
    *,
    size_px: int | Sequence[int] | None = None,
    batch: int = 8,
    device: str | int | torch.device | None = None,
) -> list[Features]:
    """Compute dense features: for each image, a grid of patch tokens and the CLS token.

    Images are rotated according to EXIF, resized (bicubic) and normalized. By default, the aspect
    ratio is kept, so the grids of two images may differ.

    Args:
        images: One image or several: paths, PIL images, uint8 arrays "h w 3", or tensors "3 h w" or
            "B 3 h w", in RGB, uint8 or float in [0, 1] (not normalized). An iterator is read
            `batch` images at a time.
        weights: What `croc.load_backbone` takes, or what it returned.
        size_px: The longer side of the network's input, with the aspect ratio kept and both sides
            rounded to multiples of the patch size; or a pair (height, width) of such multiples for
            all images. By default 448, or twice the network's native size if that is less.
        batch: Number of images per forward pass.
        device: By default a GPU if there is one; for a loaded backbone, the device it is on.

    Returns:
        One `Features` per image, in order, in memory: 28 × 28 patches of ViT-S take 1.2 MB.

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
    if isinstance(weights, FrozenBackbone):
        backbone = weights
    else:
        backbone = load_backbone(weights)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
    if device is not None:
        backbone.to(device)
    if batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    remaining = iter(_as_iterable(images))
    results: list[Features] = []
    while chunk := list(islice(remaining, batch)):  # an iterator may open a file for each image
        inputs, sizes = [], []
        for image in chunk:  # only one image at a time is in memory at full size
            pixels = _read_image(image)
            sizes.append((pixels.shape[1], pixels.shape[2]))
            inputs.append(resize(pixels, _input_size(backbone, sizes[-1], size_px)))
        tokens: dict[int, Any] = {}
        for shape in {pixels.shape for pixels in inputs}:
            indices = [index for index, pixels in enumerate(inputs) if pixels.shape == shape]
            tokens |= zip(indices, _tokens(backbone, torch.stack([inputs[i] for i in indices])))
        for index, size in enumerate(sizes):
            patches, cls = tokens[index]
            results.append(Features(patches, cls, size))
    return results


def segment(
    images: Photograph | Iterable[Photograph],
    head: str | os.PathLike[str] | Segmenter,
    *,
    device: str | int | torch.device | None = None,
) -> list[np.ndarray]:
    """Predict the class of each pixel, with a head of `croc segment`.

    Args:
        images: One image or several, as `croc.features` takes them.
        head: A folder written by `croc segment fit` or `croc segment discover`, or what
            `croc.load_segmenter` returned.
        device: By default a GPU if there is one; for a loaded segmenter, the device it is on.

    Returns:
        For each image a uint8 array "height width" of the image's own size (after EXIF rotation):
            indices into the head's `classes`.

    Examples:
        >>> import croc
        >>> head = croc.load_segmenter("heads/street")          # doctest: +SKIP
        >>> (classes,) = croc.segment("photo.jpg", head)        # doctest: +SKIP
        >>> share_of_sky = (classes == head.classes.index("sky")).mean()  # doctest: +SKIP
    """
    if not isinstance(head, Segmenter):
        head = load_segmenter(Path(head))
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
    segmenter = head if device is None else head.to(torch.device(device))
    maps = []
    for image in _as_iterable(images):
        pixels = _read_image(image)
        if pixels.is_floating_point():
            pixels = (pixels * 255).round().byte()
        maps.append(segmenter.class_map(pixels.permute(1, 2, 0).contiguous().numpy()))
    return maps


def _as_iterable(images: Any) -> Iterable[Any]:
    if isinstance(images, Tensor | np.ndarray):
        return images if images.ndim == 4 else [images]
    return [images] if isinstance(images, str | os.PathLike | Image.Image) else images


def _read_image(image: object) -> Tensor:
    """As "3 h w" of bytes, or of floats in 0 … 1, on the CPU."""
    if isinstance(image, str | os.PathLike):
        image = read_photograph(os.fspath(image))
    elif isinstance(image, Image.Image):  # rotate as in EXIF, put transparency on white
        if image.mode.startswith(("I", "F")):
            raise UserError(f"a PIL image of mode {image.mode} has no 8-bit colors: convert it")
        upright = ImageOps.exif_transpose(image).convert("RGBA")
        white = Image.new("RGBA", upright.size, "white")
        image = np.array(Image.alpha_composite(white, upright).convert("RGB"))
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3:
        image = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] != 3:
        shape = getattr(image, "shape", "")
        raise UserError(
            "an image must be a path, a PIL image, a uint8 array height × width × 3 or a tensor "
            f"3 × height × width, not {type(image).__name__} {shape}"
        )
    if image.dtype == torch.uint8:
        return image.cpu()
    if not image.is_floating_point() or not ((image >= 0) & (image <= 1)).all():
        raise UserError("an image tensor must be uint8, or float in 0 … 1 and not normalized")
    return image.cpu().float()


def _input_size(backbone: FrozenBackbone, size: tuple[int, int], size_px: Any) -> tuple[int, int]:
    """Height and width of the network's input."""
    if size_px is None:
        native = backbone.vit.patch_embed.img_size if isinstance(backbone, VitBackbone) else None
        size_px = min(448, 2 * max(native)) if native else 448
    if not isinstance(size_px, Sequence):
        if size_px < 1:
            raise UserError(f"size_px must be at least 1, not {size_px}")
        return whole_patches(size, int(size_px), backbone.stride_px)
    height, width = size_px
    for side in (height, width):
        check_fit(backbone, side, flag="size_px: images")
    return height, width


def _tokens(
    backbone: FrozenBackbone, pixels: Float[Tensor, "B 3 h w"]
) -> list[tuple[Float[Tensor, "rows columns D"], Float[Tensor, "D"] | None]]:
    """Patch tokens and CLS token of each image; copies, so that none keeps the batch in memory."""
    parameter = next(backbone.parameters(), None)  # `colors` has none
    images = backbone.normalize(pixels if parameter is None else pixels.to(parameter.device))
    if not isinstance(backbone, VitBackbone):
        maps = backbone.features(images).permute(0, 2, 3, 1).float().cpu()
        return [(patches.clone(), None) for patches in maps]
    vit, stride = backbone.vit, backbone.stride_px
    tokens = vit.forward_features(images.to(vit.patch_embed.proj.weight.dtype)).float().cpu()
    grid = (pixels.shape[2] // stride, pixels.shape[3] // stride)
    patches = tokens[:, vit.num_prefix_tokens :].unflatten(1, grid)
    has_cls = vit.cls_token is not None
    return [(p.clone(), t[0].clone() if has_cls else None) for p, t in zip(patches, tokens)]


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

    As in a training step, centroids are initialized with some of the tokens, the two most similar
    ones are merged until two are left, and the K with the lowest transport cost is chosen, per
    image and head. Checking the arguments synchronizes with the GPU.

    Args:
        tokens: B images, H heads, T tokens of width d: all tokens of the first view, then those
            of the next. They need not have unit length.
        positions: (x, y) of each token in coordinates of the original image, scaled so that its
            longer side is 1; tokens of two views that show the same place have similar positions.
        saliency: The weight of each token, summing to 1 over the tokens of an image and head (in
            the variant `released`, the cosine with the CLS token of the token's view).
        config: K_start, the weight of the positions, the variant, and more.
        views: Number of views that the tokens come from; 1 clusters a whole image.
        seeds: Indices of the tokens that initialize the centroids: `config.k_start` distinct ones
            per image and head.
        keys: One number per image, from which the initial tokens are drawn if `seeds` is not
            passed; by default 0, 1, 2, …

    Returns:
        `Clusters`: `assignments` "M B H N K" (soft, padded with zeros to K_start), `valid`
            "B H K" (clusters present in every view), `cost` and the chosen K, `count`, "B H".

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
    tensors: dict[str, tuple[Any, Any]] = {
        "tokens": (tokens, Float[Tensor, "B H T d"]),
        "positions": (positions, Float[Tensor, "B T 2"]),
        "saliency": (saliency, Float[Tensor, "B H T"]),
        "seeds": (seeds, Int[Tensor, f"B H {config.k_start}"]),
        "keys": (keys, Int[Tensor, "B"]),
    }
    with jaxtyped("context"):  # one size for each letter
        for name, (value, kind) in tensors.items():
            if value is not None and not isinstance(value, kind):
                shape = tuple(value.shape)
                raise UserError(f"{name} must be {kind.__name__}, not {shape} (tokens: B H T d)")
    count = tokens.shape[2]
    if count % views:
        raise UserError(f"{count} tokens cannot come from {views} views of one size")
    far = (saliency.sum(dim=-1, dtype=torch.float32) - 1).abs().max()
    is_share = (saliency >= 0).all() and far <= max(1e-3, torch.finfo(saliency.dtype).eps)
    if config.variant == "paper" and not is_share:
        raise UserError("saliency must not be negative and must sum to 1: divide it by its sum")
    if seeds is None and keys is None:
        keys = torch.arange(len(tokens), device=tokens.device)
    keys = None if keys is None else keys.long()
    return cluster_views(
        rearrange(tokens, "b h (m n) d -> m b h n d", m=views),
        rearrange(positions, "b (m n) c -> m b n c", m=views),
        rearrange(saliency, "b h (m n) -> m b h n", m=views),
        config,
        seeds=seeds,
        keys=keys,
    )


@dataclass(frozen=True, init=False)
class Run:
    """A run folder, finished or not: `croc.Run("runs/demo")` opens an existing one."""

    folder: Path
    """With config.json, metrics.jsonl, report.html, checkpoints/ and tensorboard/."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not (self.folder / CONFIG_FILE).is_file():
            raise UserError(f"{self.folder} has no run: pass a folder written by croc pretrain")

    @property
    def config(self) -> PretrainConfig:
        """All settings, as in the run's config.json."""
        return read_config(self.folder / CONFIG_FILE)[0]

    def metrics(self) -> list[dict[str, float | int]]:
        """The lines of metrics.jsonl: step, epoch, losses, entropies, mean K, images/s and more."""
        return read_metrics(self.folder)

    def __fspath__(self) -> str:
        """The folder: a run can be passed in place of a path or weights."""
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
    init: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    **options: Mapping[str, Any],
) -> Run:
    """Pre-train a backbone, or resume the run in the folder.

    Progress is printed to stderr. Ctrl-C, or a notebook's stop button, saves a checkpoint first and
    then raises KeyboardInterrupt; the same call resumes from there. Only the main thread receives
    signals. In a notebook, a run uses a single process; train on several GPUs from a script.

    Args:
        recipe: A recipe's name, such as "coco-vits16" or "demo", or a whole configuration.
        data: The images: a folder, several folders, tar shards, or "scenes"; by default those of
            the recipe. Or a dict of the options of the section `data`, such as `root`.
        folder: Output folder; by default runs/RECIPE. A folder with other contents is rejected,
            never overwritten.
        init: Weights to start from, as `--init`.
        resume: What to do with an existing run, as `--resume`.
        options: All other options of `croc pretrain`, by section: `--optim.epochs 3
            --optim.batch 64` on the command line is `optim={"epochs": 3, "batch": 64}` here.

    Returns:
        The `Run`, in every process: with several, code after this call runs in each of them.

    Raises:
        Interrupted: After a checkpoint, on SIGTERM or SIGUSR1, as sent by cluster schedulers;
            `sys.exit(error.exit_code)` tells a scheduler to restart the job.

    Examples:
        >>> import croc
        >>> croc.pretrain("coco-vits16", data="photographs", optim={"epoch": 3})
        Traceback (most recent call last):
        croc.errors.UserError: unknown option optim.epoch; perhaps you meant optim.epochs

        A run of two steps on synthetic scenes:

        >>> short = {"stop_after_steps": 2, "report": False}
        >>> run = croc.pretrain("demo", folder="runs/short", data={"scenes": 48}, run=short)
        >>> [line["step"] for line in run.metrics()]
        [1, 2]
        >>> run.backbone().stride_px
        8
    """
    if isinstance(recipe, str):
        _check_names([recipe], RECIPES, noun="recipe")
        config, name = RECIPES[recipe](), recipe
    elif type(recipe) in METHODS.values():
        config, name = recipe, "custom"
    else:
        kinds = ", ".join(kind.__name__ for kind in METHODS.values())
        kind = type(recipe).__name__
        raise UserError(f"a {kind} is not a recipe: pass the name of one, or one of {kinds}")
    sections: dict[str, dict[str, Any]] = {name: {**values} for name, values in options.items()}
    if data is not None:
        data_options: Any = data if isinstance(data, Mapping) else {"root": data}
        sections["data"] = {**data_options}
    if "root" in sections.get("data", {}):
        root = sections["data"]["root"]
        roots = [root] if isinstance(root, str | os.PathLike) else root
        sections["data"]["root"] = [os.fspath(path) for path in roots]
    for section, option, value in (
        ("run", "folder", folder),
        ("model", "init", init),
        ("run", "resume", resume),
    ):
        if value is not None:
            sections.setdefault(section, {})[option] = os.fspath(value)
    _check_names(sections, [field.name for field in dataclasses.fields(config)])
    for section, values in sections.items():
        changed = _change(getattr(config, section), values, f"{section}.")
        config = dataclasses.replace(config, **{section: changed})
    if isinstance(recipe, str) and config.model.init is not None:
        passed = {f"{section}.{option}" for section in sections for option in sections[section]}
        config = follow_init(config, name, {option.replace("_", "-") for option in passed})
    from croc import fabric

    if config.run.devices == "auto" and fabric.IS_INTERACTIVE:  # Lightning refuses more there
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, devices=1))
    from croc.lab.report.hook import ReportHook
    from croc.train.loop import pretrain as train

    try:
        with torch.random.fork_rng(devices=[]):  # training must not change the caller's numbers
            return Run(train(config, name, ReportHook))
    except Interrupted as error:
        if error.number == signal.SIGINT:
            raise KeyboardInterrupt(str(error)) from None
        raise


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
    """Score frozen dense features with one protocol, or with all that the dataset supports.

    Progress is printed to stderr.

    Args:
        protocol: "linear" (a linear layer on the features), "kmeans" (clusters matched to
            classes), "within" (the same in each image separately), "incontext" (labels of the
            nearest neighbors), "fewlabel" (linear and in-context with few labeled images), "video"
            (propagates the first frame's mask), or "all": all of these but "fewlabel".
        weights: What `croc.load_backbone` takes, not what it returned: a result records where the
            weights came from. For a run, the teacher is evaluated.
        data: KIND:PATH, such as "voc12:/data/VOC2012" or "folder:mine" for your own images and
            label maps (docs/evaluate.md), or "scenes", which needs no path.
        results: Output folder: a line is appended to its results.jsonl and predictions are saved
            in its pictures/; by default nothing is written.
        device: "auto" is a GPU if there is one.
        precision: Precision of the backbone; "auto" is bfloat16 on a GPU and float32 on the CPU.
        workers: Decoding processes; by default one per core, at most 16.
        hold_out: Score on this fraction of the training split instead of the validation split, for
            model selection.
        options: The protocol's settings, such as `steps=300` for `--linear.steps 300`. Defaults
            depend on the dataset (docs/evaluate.md).

    Returns:
        A `Result`, or a list of them for "all", with `scores` (percentages by name, starting with
            the one that papers report), `classes` (IoU by class), `config` (all settings) and more.

    Examples:
        >>> import croc
        >>> weights = "random:vit_tiny_patch16_224"
        >>> result = croc.evaluate("linear", weights, "scenes:4", steps=2, workers=0)
        >>> list(result.scores), len(result.classes)
        (['mIoU', 'accuracy'], 13)
        >>> croc.evaluate("linear", weights, "scenes", step=2)
        Traceback (most recent call last):
        croc.errors.UserError: unknown option step; perhaps you meant steps
    """
    _check_names([protocol], [*DEFAULTS, "all"], noun="protocol")
    if not isinstance(weights, str | os.PathLike):
        kind = type(weights).__name__
        raise UserError(f"weights must be a path or name, as for croc.load_backbone, not {kind}")
    machine = {"device": device, "precision": precision, "workers": workers, "hold_out": hold_out}
    evaluation = _change(EvaluateOptions(os.fspath(weights), data), machine)
    if protocol == "all":
        names = [name for name in protocols_of(data, hold_out) if name in PROTOCOLS]
    else:
        check_protocol(protocol, data, hold_out)
        names = [protocol]
    requests = []
    for name in names:
        flags = {f"--linear.{option}" for option in options}
        settings = _change(default_config(name, data.partition(":")[0], flags), options)
        requests.append(Request(name, data, settings, hold_out=hold_out))
    with TemporaryDirectory(prefix="croc-") as temporary:
        to = temporary if results is None else os.fspath(results)
        scored = evaluate_requests(dataclasses.replace(evaluation, to=to), requests, show=False)
    if results is None:
        scored = [dataclasses.replace(result, picture=None) for result in scored]
    return scored if protocol == "all" else scored[0]


def _change(config: Config, changes: Mapping[str, Any], prefix: str = "") -> Config:
    """A configuration with some fields replaced, names and types checked; lists become tuples."""
    hints = typing.get_type_hints(type(config))
    _check_names(changes, hints, prefix)
    values = {}
    for name, value in changes.items():
        value = tuple(value) if isinstance(value, list) else value
        try:
            values[name] = typeguard.check_type(value, hints[name])
        except typeguard.TypeCheckError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the option {prefix}{name} cannot be {value!r}: {reason}") from None
    return dataclasses.replace(typing.cast(Any, config), **values)


def _check_names(
    names: Iterable[str], known: Iterable[str], prefix: str = "", noun: str = "option"
) -> None:
    """Reject an unknown name, and suggest the nearest known one."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"perhaps you meant {prefix}{near[0]}" if near else f"available: {known}"
            raise UserError(f"unknown {noun} {prefix}{name}; {hint}")
