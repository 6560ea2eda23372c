"""The clusters of a few fixed images by the current teacher: one small picture per checkpoint."""

import json
from pathlib import Path

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
from croc.lab.show.figures import PALETTE, blend, by_size, to_array, upsample
from croc.lab.show.look import grid_of, to_canvases
from croc.method.backbone import Backbone
from croc.method.clustering.paper import softness
from croc.method.photometric import unnormalise
from croc.method.types import Canvases, Clusters, Views

IMAGES, HEADS = 4, 6
MAX_TRIED = 32
"""Files tried until enough can be decoded."""
TILE_PX, GAP_PX = 112, 2
GAP_COLOUR = (127, 127, 127)


class ClusterPictures:
    """Draws on the CPU with a copy of the teacher, so the run's own networks, their modes and
    torch's random state stay as they are."""

    def __init__(self, config: CrocConfig, source: ImageSource, folder: Path) -> None:
        self._config, self._source, self._folder = config, source, folder
        self._names: list[str] = []
        self._canvases: Canvases | None = None

    def draw(self, weights: dict[str, Tensor], step: int) -> None:
        """The picture of a backbone's weights, if any image can be read."""
        config = self._config
        if self._canvases is None:
            self._canvases = self._read_images()
        if self._canvases is None:
            return
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(config.model, config.views.size_px).eval().requires_grad_(False)
        backbone.load_state_dict(weights)
        views, clusters = find_clusters(config, backbone, self._canvases)
        path = picture_path(self._folder, step)
        path.parent.mkdir(exist_ok=True)
        _save_picture(views, clusters, backbone.patch_px, self._names, path)
        drop_pictures(self._folder, steps_to_drop)

    def forget_after(self, step: int) -> None:
        """Remove pictures of steps that a resumed run repeats."""
        drop_pictures(self._folder, lambda steps: [each for each in steps if each > step])

    def _read_images(self) -> Canvases | None:
        images = []
        for index in range(min(MAX_TRIED, len(self._source))):
            try:
                images.append(self._source.read(index))
            except UndecodableImage:
                continue
            self._names.append(self._source.name(index))
            if len(images) == IMAGES:
                break
        config = self._config
        return to_canvases(images, config.data.canvas_px, config.run.seed) if images else None


def _save_picture(
    views: Views, clusters: Clusters, patch_px: int, names: list[str], path: Path
) -> None:
    """Two rows of tiles per image, one for each view: the view, then the clusters of each head.

    The JPEG's comment describes the tiles, so that the page can show that as text.
    """
    grid, pixels = grid_of(views, patch_px), unnormalise(views.pixels)
    small = F.interpolate(
        pixels.flatten(0, 1), size=(TILE_PX, TILE_PX), mode="bicubic", antialias=True
    )
    tiles = small.clamp(0, 1).unflatten(0, pixels.shape[:2])
    count, images = tiles.shape[:2]
    heads, step = min(HEADS, clusters.valid.shape[1]), TILE_PX + GAP_PX
    sheet = Image.new("RGB", (step * (heads + 1), step * count * images), GAP_COLOUR)
    for image in range(images):
        colours = [by_size(clusters.assignments[:, image, head]) for head in range(heads)]
        for view in range(count):
            tile, top = tiles[view, image], step * (count * image + view)
            sheet.paste(_to_image(tile), (0, top))
            for head in range(heads):
                shares = upsample(clusters.assignments[view, image, head], grid, tile)
                valid = clusters.valid[image, head]
                painted = blend(tile, shares, valid, PALETTE[colours[head] % len(PALETTE)])
                sheet.paste(_to_image(painted), (step * (head + 1), top))
    about = {
        "images": [name[-80:] for name in names],
        "heads": heads,
        "of": clusters.valid.shape[1],
        "k": clusters.count[:, :heads].tolist(),
        "shared": clusters.valid[:, :heads].sum(dim=-1).tolist(),
        "share": softness(clusters.assignments)[1][:, :heads].tolist(),
    }
    with replacing(path) as partial:
        sheet.save(partial, "JPEG", quality=82, comment=json.dumps(about).encode("ascii"))


def _to_image(pixels: Float[Tensor, "3 t t"]) -> Image.Image:
    return Image.fromarray((255 * to_array(pixels)).round().astype(np.uint8))
