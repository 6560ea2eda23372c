"""croc show clusters | merging | features: what they are asked, and who answers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from croc.arguments import parse
from croc.errors import UserError


@dataclass(frozen=True)
class _Whose:
    run: str | None = None
    """The run's folder."""
    step: int | None = None
    """Which of the run's checkpoints, by its step; 0 is the network untrained. By default the
    last."""
    weights: str | None = None
    """Instead of a run, the name of shipped weights or a file of croc export."""
    heads: tuple[int, ...] | None = None
    """Attention heads to show, counted from 0."""
    to: str | None = None
    """The picture to write; by default KIND.png in the run's folder, or NAME-KIND.png here."""
    image_px: int | None = None
    """Longer side of a whole image; by default twice that of the views in training."""


@dataclass(frozen=True)
class ShowClusters(_Whose):
    """Draw the clusters that a run's teacher finds in two augmented views of an image."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Photographs; by default four of the run's own, or for weights the two that we ship."""
    whole: bool = False
    """Instead of two augmented views, the whole image once, clustered alone."""
    seed: int = 0
    """Of the crops, the colours and the starting centroids."""


@dataclass(frozen=True)
class ShowMerging(_Whose):
    """Draw the last steps of the clustering, from K_start to 2, and the cost at each K."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """One photograph."""
    whole: bool = False
    """Instead of two augmented views, the whole image once, clustered alone."""
    seed: int = 0
    """Of the crops, the colours and the starting centroids."""


@dataclass(frozen=True)
class ShowFeatures(_Whose):
    """Draw the tokens of whole photographs by PCA, and the attention of the CLS token."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Photographs; by default the two that we ship."""
    patch: tuple[float, float] | None = None
    """X and Y, in the photograph's pixels, of what all is compared with; by default its middle."""
    together: bool = False
    """One PCA over all photographs, so that colours mean the same in each."""


def run_command(kind: str, arguments: list[str]) -> None:
    """croc show KIND IMAGE ... --run RUN, or --weights NAME."""
    asked = parse(KINDS[kind], arguments, f"croc show {kind}")
    if (asked.run is None) == (asked.weights is None):
        noun = "features" if kind == "features" else "clusters"
        raise UserError(f"say whose {noun}: --run RUN, or --weights NAME")
    if asked.run is None and asked.step is not None:
        raise UserError("--step is for --run: weights have no other steps")
    if kind == "merging" and len(asked.images) != 1:
        raise UserError("croc show merging takes one photograph: name it")
    if kind != "features" and asked.image_px is not None and not asked.whole:
        raise UserError("--image-px is for --whole: augmented views have the size of training")
    print(_draw(asked))


def _draw(asked: _Whose) -> Path:
    from croc.lab.show.look import look_at_run, look_at_weights

    if asked.run is not None:
        look = look_at_run(Path(asked.run), asked.step)
    else:
        look = look_at_weights(asked.weights or "")
    side_px = look.side_px(asked.image_px)
    if isinstance(asked, ShowFeatures):
        from croc.lab.show.features import draw_features

        more = (asked.heads, asked.patch, asked.together)
        return draw_features(look, asked.images, asked.to, side_px, *more)
    assert isinstance(asked, ShowClusters | ShowMerging)
    more = (asked.to, asked.seed, asked.heads, side_px if asked.whole else None)
    if isinstance(asked, ShowMerging):
        from croc.lab.show.merging import draw_merging

        return draw_merging(look, asked.images[0], *more)
    from croc.lab.show.clusters import draw_clusters

    return draw_clusters(look, asked.images, *more)


KINDS = {"clusters": ShowClusters, "merging": ShowMerging, "features": ShowFeatures}
