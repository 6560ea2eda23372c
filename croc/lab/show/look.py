"""Whom to ask and what to show: a run or weights opened, photographs read and brought to size."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from croc.config import CrocConfig, PretrainConfig
from croc.data import ImageSource, UndecodableImage, decode_image, open_source, place_on_canvas
from croc.errors import UserError
from croc.lab.show.figures import picture_path
from croc.method.backbone import Backbone
from croc.method.photometric import normalise
from croc.method.randomness import sample_key
from croc.method.types import Canvases, Views
from croc.train.checkpoint import checkpoint_path, checkpoints
from croc.train.run_folder import PAGE, parse_config, read_config
from croc.weights.page import LARGEST_PX, read_page
from croc.weights.runs import open_run, untrained
from croc.weights.shipped import build_exported, find_weights, say_shipped

SHOWN = 4
WHOLE_PX = 1 << 16  # no photograph is longer, so none is reduced
MOST_PX = 2_048


@dataclass(frozen=True)
class Look:
    """A frozen network, how it was trained, and what to call it."""

    title: str
    recipe: str
    config: PretrainConfig
    backbone: Backbone
    folder: Path | None
    """The run's; weights have none of their own."""

    def picture(self, kind: str, to: str | None) -> Path:
        """Where the picture goes: what is asked, else the run's folder, else here."""
        default = Path(f"{self.title}-{kind}.png")
        return picture_path(self.folder / f"{kind}.png" if self.folder else default, to)

    @property
    def croc(self) -> CrocConfig:
        """The configuration, if it tells how to cluster."""
        if not isinstance(self.config, CrocConfig):
            raise UserError(
                f"{self.title} ({self.recipe}) is not of CrOC, and other methods know no clusters"
            )
        return self.config

    def side_px(self, asked: int | None) -> int:
        """Longer side at which a whole image is looked at: by default twice a view's."""
        patch = self.backbone.patch_px
        if asked is not None and not patch <= asked <= MOST_PX:
            raise UserError(f"--image-px {asked}: from {patch}, one patch, to {MOST_PX}")
        return asked or min(2 * self.config.views.size_px, MOST_PX)


def look_at_run(run: Path, step: int | None = None) -> Look:
    """The teacher of a run's last checkpoint, or of the one at that step; 0 is untrained."""
    if not (run / PAGE).is_file():
        raise UserError(f"{run} holds no run: give the folder that `croc pretrain` wrote")
    title = run.resolve().name
    if step == 0:
        config, recipe = read_config(run / PAGE)
        return Look(f"{title}, untrained", recipe, config, _frozen(untrained(config)), run)
    found = checkpoints(run)
    if not found:
        raise UserError(f"{run} has no checkpoint yet: train until the first is written")
    chosen = found[-1] if step is None else checkpoint_path(run, step)
    if chosen not in found:
        kept = ", ".join(["0", *(path.stem.rpartition("-")[2].lstrip("0") for path in found)])
        raise UserError(f"--step {step}: {run} keeps the steps {kept}")
    opened = open_run(run, chosen)
    title = f"{title}, step {opened.step:,}"
    return Look(title, opened.recipe, opened.config, _frozen(opened.backbone), run)


def look_at_weights(spec: str) -> Look:
    """Shipped weights by their name, or another file of `croc export`."""
    return look_at_export(spec, "a run's folder is for --run")


def look_at_export(spec: str, otherwise: str) -> Look:
    """`otherwise` is said of what is no such file. All that it asks for must have a sane size."""
    path = find_weights(spec)
    page = read_page(path) if path.is_file() else None
    if page is None:
        raise UserError(
            f"--weights {spec}: give a file of croc export ({say_shipped()}); {otherwise}"
        )
    config, recipe = parse_config(page.config, f"what {path} says of itself")
    sizes = [config.views.size_px, config.data.canvas_px]
    if isinstance(config, CrocConfig):
        sizes += [config.cluster.k_start, config.cluster.sinkhorn_iterations]
    if max(sizes) > LARGEST_PX:
        raise UserError(f"{path} asks for views or clusters of impossible size")
    return Look(path.stem, recipe, config, _frozen(build_exported(path, page)), None)


def _frozen(backbone: Backbone) -> Backbone:
    return backbone.eval().requires_grad_(False)


def read_photograph(name: str, longest_px: int = WHOLE_PX) -> UInt8[np.ndarray, "h w 3"]:
    """The upright picture, its longer side at most so many pixels."""
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder: name the photographs in it")
    try:
        return decode_image(Path(name).read_bytes(), longest_px)
    except (OSError, UndecodableImage) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = re.sub(r" <_io\..*", "", reason)  # Pillow names the bytes, which nobody knows
        raise UserError(f"{name} cannot be read as a photograph: {reason}") from None


def read_photographs(
    config: PretrainConfig, images: tuple[str, ...], longest_px: int
) -> list[np.ndarray]:
    """Those that are named, else the first of the run's own data."""
    if images:
        return [read_photograph(name, longest_px) for name in images]
    found = list(islice(readable(open_source(config.data, config.run.seed)), SHOWN))
    if not found:
        raise UserError("the run's data hold no readable photograph: name some")
    return found


def readable(source: ImageSource) -> Iterator[np.ndarray]:
    """Its images in order, without those that cannot be decoded."""
    for index in range(len(source)):
        with contextlib.suppress(UndecodableImage):
            yield source.read(index)


def to_canvases(pictures: list[np.ndarray], canvas_px: int, seed: int) -> Canvases:
    pixels = np.stack([place_on_canvas(picture, canvas_px) for picture in pictures])
    sizes = [picture.shape[:2] for picture in pictures]
    return Canvases(torch.from_numpy(pixels), torch.tensor(sizes), keys_of(seed, len(pictures)))


def keys_of(seed: int, count: int) -> Int64[Tensor, "{count}"]:
    return torch.tensor([sample_key(seed, 0, index) for index in range(count)])


def whole_view(picture: UInt8[np.ndarray, "H W 3"], side_px: int, patch_px: int) -> Views:
    """The whole image as its only view, its sides brought to the nearest whole patches."""
    height, width, _ = picture.shape
    longer = max(height, width)
    rows, columns = (
        max(1, round(side * side_px / (longer * patch_px))) for side in (height, width)
    )
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255
    size = (rows * patch_px, columns * patch_px)
    seen = F.interpolate(pixels, size=size, mode="bicubic", antialias=True).clamp(0, 1)
    return Views(normalise(seen)[None], _centres(rows, columns, height, width)[None, None])


def whole_to_cluster(look: Look, picture: UInt8[np.ndarray, "H W 3"], side_px: int) -> Views:
    """The same, if it has enough patches to start the clusters from."""
    views = whole_view(picture, side_px, look.backbone.patch_px)
    patches, k = views.positions.shape[2], look.croc.cluster.k_start
    if patches < k:
        raise UserError(f"at --image-px {side_px} there are {patches} patches for {k} clusters")
    return views


def _centres(rows: int, columns: int, height: int, width: int) -> Float[Tensor, "N 2"]:
    """(x, y) of each patch's centre, row by row, in the image's frame: its longer side is 1."""
    y = (torch.arange(rows) + 0.5) / rows * (height / max(height, width))
    x = (torch.arange(columns) + 0.5) / columns * (width / max(height, width))
    y, x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def grid_of(views: Views, patch_px: int) -> tuple[int, int]:
    height, width = views.pixels.shape[-2:]
    return height // patch_px, width // patch_px
