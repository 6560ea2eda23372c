"""`croc show clusters | merging | features`: the flags, and which figure they draw."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from croc.config import parse
from croc.errors import UserError

Images = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE ...]")]
PICTURES = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class _Show:
    run: str | None = None
    """Run folder. Pass either this or --weights."""
    step: int | None = None
    """Step of the checkpoint; 0 is the untrained network. By default the last one."""
    weights: str | None = None
    """The name of bundled weights, a run folder, a file written by croc export, hf:USER/NAME, or
    random:NAME for an untrained timm ViT."""
    heads: tuple[int, ...] | None = None
    """Indices of the attention heads to show, from 0; by default all (merging: the first three)."""
    to: str | None = None
    """Output file; by default KIND.png in the run folder, or NAME-KIND.png in the current
    directory."""
    image_px: int | None = None
    """Longer side of a whole image; by default twice the view size used in training."""


@dataclass(frozen=True)
class ShowClusters(_Show):
    """Plot the teacher's clusters in two augmented views of each image."""

    images: Images = ()
    """Images; by default four from the run's data, or with --weights two bundled photos."""
    whole: bool = False
    """Cluster the whole image instead of two augmented views."""
    seed: int = 0
    """Seed for the crops, the color augmentation and the initial centroids."""


@dataclass(frozen=True)
class ShowMerging(ShowClusters):
    """Plot the last merging steps and the cost at each K from K_start to 2."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")] = ()
    """One image (required)."""


@dataclass(frozen=True)
class ShowFeatures(_Show):
    """Plot a PCA of the tokens of whole images, the similarity to a patch and the CLS attention."""

    images: Images = ()
    """Images; by default two bundled photos."""
    patch: tuple[float, float] | None = None
    """x and y, in pixels of the image, of the patch to compare with; by default the center."""
    shared_pca: bool = False
    """Fit one PCA across all images, so that colors are comparable."""
    columns: tuple[Literal["image", "pca", "similarity", "attention", "clusters"], ...] = (
        "image",
        "pca",
        "similarity",
        "attention",
    )
    """What to draw for each image; `clusters` are those of the whole image."""


def run_command(kind: str, arguments: list[str]) -> None:
    """croc show KIND IMAGE ... --run RUN, or --weights NAME; prints the path of the figure."""
    kinds = {"clusters": ShowClusters, "merging": ShowMerging, "features": ShowFeatures}
    options: Any = parse(kinds[kind], arguments, f"croc show {kind}")
    if (options.run is None) == (options.weights is None):
        raise UserError("pass the network to plot: --run RUN, or --weights NAME")
    if options.run is None and options.step is not None:
        raise UserError("--step needs --run: weights have a single step")
    if kind == "merging" and len(options.images) != 1:
        raise UserError("croc show merging takes one image: pass its path")
    if kind != "features" and options.image_px is not None and not options.whole:
        raise UserError("--image-px needs --whole: augmented views have the size used in training")
    if options.to and Path(options.to).suffix.lower() not in PICTURES:
        raise UserError(f"--to {options.to}: pass a file name ending in {', '.join(PICTURES)}")
    from croc.lab.show.clusters import draw_clusters, draw_merging
    from croc.lab.show.features import draw_features
    from croc.lab.show.look import look_at_run, look_at_weights

    if options.run is not None:
        look = look_at_run(Path(options.run), options.step)
    else:
        look = look_at_weights(options.weights)
    default = look.folder / f"{kind}.png" if look.folder else f"{look.title}-{kind}.png"
    path = Path(options.to or default)
    draw: Any = {"clusters": draw_clusters, "merging": draw_merging, "features": draw_features}
    draw[kind](look, options).savefig(path)
    print(path)
