"""`croc show clusters | merging | features`: the flags, and which picture they draw."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from croc.config import parse
from croc.errors import UserError

PICTURES = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class _Show:
    run: str | None = None
    """Run folder."""
    step: int | None = None
    """Step of the checkpoint; 0 is the untrained network. By default the last one."""
    weights: str | None = None
    """Instead of a run: the name of bundled weights, a file written by croc export, or
    random:NAME for an untrained timm ViT."""
    heads: tuple[int, ...] | None = None
    """Attention heads to show, counted from 0."""
    to: str | None = None
    """Output file; by default KIND.png in the run folder, or NAME-KIND.png in the current
    directory."""
    image_px: int | None = None
    """Longer side of a whole image; by default twice the view size used in training."""


@dataclass(frozen=True)
class ShowClusters(_Show):
    """Draw the clusters that the teacher finds in two augmented views of each image."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Images; by default four from the run's data, or with --weights two bundled photos."""
    whole: bool = False
    """Cluster the whole image instead of two augmented views."""
    seed: int = 0
    """Seed for the crops, the color augmentation and the initial centroids."""


@dataclass(frozen=True)
class ShowMerging(ShowClusters):
    """Plot the last merging steps and the cost at each K from K_start to 2."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """One image."""


@dataclass(frozen=True)
class ShowFeatures(_Show):
    """Plot the PCA of the tokens of whole images, and the attention of the CLS token."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Images; by default two bundled photos."""
    patch: tuple[float, float] | None = None
    """X and Y, in the photograph's pixels, of the patch to compare with; by default its middle."""
    together: bool = False
    """Fit one PCA across all images, so that colors are comparable."""
    columns: tuple[Literal["photograph", "pca", "cosine", "attention", "clusters"], ...] = (
        "photograph",
        "pca",
        "cosine",
        "attention",
    )
    """What to draw of each photograph; clusters are those of the whole photograph."""


def show(kind: str, arguments: list[str]) -> Path:
    """croc show KIND IMAGE ... --run RUN, or --weights NAME; the picture's path."""
    kinds = {"clusters": ShowClusters, "merging": ShowMerging, "features": ShowFeatures}
    options: Any = parse(kinds[kind], arguments, f"croc show {kind}")
    if (options.run is None) == (options.weights is None):
        raise UserError("name the network to draw: --run RUN, or --weights NAME")
    if options.run is None and options.step is not None:
        raise UserError("--step is for --run: weights have no other steps")
    if kind == "merging" and len(options.images) != 1:
        raise UserError("croc show merging takes one photograph: name it")
    if kind != "features" and options.image_px is not None and not options.whole:
        raise UserError("--image-px is for --whole: augmented views have the size of training")
    if options.to and Path(options.to).suffix.lower() not in PICTURES:
        raise UserError(f"--to {options.to}: give it an ending, one of {', '.join(PICTURES)}")
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
    return path
