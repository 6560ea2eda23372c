"""The clusters of a few fixed images as the teacher stands: one small picture a checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from croc.config import CrocConfig
from croc.data import ImageSource, UndecodableImage
from croc.io import replacing
from croc.lab.report.pictures import drop_pictures, picture_path, steps_to_drop
from croc.lab.show.clusters import find_clusters
from croc.lab.show.figures import (
    PALETTE,
    blend,
    by_size,
    to_array,
    upsample,
)
from croc.lab.show.look import grid_of, to_canvases
from croc.method.backbone import Backbone
from croc.method.clustering.softness import softness
from croc.method.photometric import unnormalise
from croc.method.types import Canvases, Clusters, Views

IMAGES = 4
LOOKED_AT = 32
"""Files tried until enough can be decoded."""
HEADS = 6
TILE_PX, GAP_PX = 112, 2
BETWEEN = (127, 127, 127)
QUALITY = 82


class ClusterPictures:
    """Draws on the CPU by a copy of the teacher: the run's own networks are only read.

    So neither compiled parts see another batch, nor their modes change; what building the copy
    draws of torch's random numbers is given back.
    """

    def __init__(self, config: CrocConfig, source: ImageSource, folder: Path) -> None:
        self._config, self._source, self._folder = config, source, folder
        self._made: tuple[Backbone, Canvases | None, list[str]] | None = None

    def draw(self, weights: dict[str, Tensor], step: int) -> None:
        """The picture of a backbone's weights, if there is an image to draw."""
        if self._made is None:
            self._made = self._make()
        backbone, canvases, names = self._made
        if canvases is None:
            return
        backbone.load_state_dict(weights)
        views, clusters = find_clusters(self._config, backbone, canvases)
        path = picture_path(self._folder, step)
        path.parent.mkdir(exist_ok=True)
        save_picture(views, clusters, backbone.patch_px, names, path)
        drop_pictures(self._folder, steps_to_drop)

    def forget_after(self, step: int) -> None:
        """Pictures of steps that a resumed run has yet to take."""
        drop_pictures(self._folder, lambda steps: [each for each in steps if each > step])

    def _make(self) -> tuple[Backbone, Canvases | None, list[str]]:
        config = self._config
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(config.model, config.views.size_px).eval().requires_grad_(False)
        names, images = _first_images(self._source)
        canvases = to_canvases(images, config.data.canvas_px, config.run.seed) if images else None
        return backbone, canvases, names


def _first_images(source: ImageSource) -> tuple[list[str], list[np.ndarray]]:
    names, images = [], []
    for index in range(min(LOOKED_AT, len(source))):
        try:
            images.append(source.read(index))
        except UndecodableImage:
            continue
        names.append(source.name(index))
        if len(images) == IMAGES:
            break
    return names, images


def save_picture(
    views: Views, clusters: Clusters, patch_px: int, names: list[str], path: Path
) -> None:
    """Two rows of tiles an image, one for each view: the view, then what each head makes of it.

    What the tiles show is said in the JPEG's comment, so that a page can write it as text.
    """
    pixels, grid = _reduced(unnormalise(views.pixels)), grid_of(views, patch_px)
    count, images = pixels.shape[:2]
    heads = min(HEADS, clusters.valid.shape[1])
    step = TILE_PX + GAP_PX
    size = (step * (heads + 1), step * count * images)
    sheet = Image.new("RGB", size, BETWEEN)
    for image in range(images):
        colours = [by_size(clusters.assignments[:, image, head]) for head in range(heads)]
        for view in range(count):
            seen, top = pixels[view, image], step * (count * image + view)
            sheet.paste(_to_image(seen), (0, top))
            for head in range(heads):
                shares = upsample(clusters.assignments[view, image, head], grid, seen)
                valid = clusters.valid[image, head]
                painted = blend(seen, shares, valid, PALETTE[colours[head] % len(PALETTE)])
                sheet.paste(_to_image(painted), (step * (head + 1), top))
    comment = json.dumps(_described(clusters, names, heads)).encode("ascii")
    with replacing(path) as partial:
        sheet.save(partial, "JPEG", quality=QUALITY, comment=comment)


def _reduced(pixels: Float[Tensor, "M B 3 h w"]) -> Float[Tensor, "M B 3 t t"]:
    size = (TILE_PX, TILE_PX)
    small = F.interpolate(pixels.flatten(0, 1), size=size, mode="bicubic", antialias=True)
    return small.clamp(0, 1).unflatten(0, pixels.shape[:2])


def _to_image(pixels: Float[Tensor, "3 t t"]) -> Image.Image:
    return Image.fromarray((255 * to_array(pixels)).round().astype(np.uint8))


def _described(clusters: Clusters, names: list[str], heads: int) -> dict[str, Any]:
    return {
        "images": [name[-80:] for name in names],
        "heads": heads,
        "of": clusters.valid.shape[1],
        "k": clusters.count[:, :heads].tolist(),
        "shared": clusters.valid[:, :heads].sum(dim=-1).tolist(),
        "share": softness(clusters.assignments)[1][:, :heads].tolist(),
    }
