"""The report during training: pictures and page after each checkpoint, in a small share of time."""

import json
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from croc.config import CrocConfig, PretrainConfig
from croc.data.sources import ImageSource, read_images
from croc.io import replacing
from croc.lab.report.page import FILE, picture_path, picture_steps, write_report
from croc.lab.show.clusters import find_in_views
from croc.lab.show.figures import paint, to_array
from croc.lab.show.look import grid_of, to_canvases
from croc.method.backbone import Backbone
from croc.method.clustering.join_split import softness
from croc.method.photometric import unnormalize
from croc.method.types import Clusters, Views
from croc.method.views import make_views

SHARE = 0.02
"""Fraction of the run's time that drawing may take. Checkpoints that would exceed it are not drawn,
except the last."""
IMAGES, MAX_TRIED, HEADS = 4, 32, 6
"""Number of images that are drawn, of files that are tried to find them, and of heads."""
TILE_PX, GAP_PX = 112, 2


class ReportHook:
    """`pretrain`'s make_save_hook: plots the clusters (of CrOC) and writes report.html."""

    def __init__(
        self, config: PretrainConfig, source: ImageSource, folder: Path, first_step: int
    ) -> None:
        self._config, self._source, self._folder = config, source, folder
        self._first_step, self._started, self._spent = first_step, time.perf_counter(), 0.0
        for step in picture_steps(folder):
            if step > first_step:  # a resumed run repeats it
                picture_path(folder, step).unlink()

    def __call__(self, weights: dict[str, Tensor], step: int, last: bool) -> None:
        """At the start of a run, only the untrained teacher is drawn."""
        now = time.perf_counter()
        starts = step == self._first_step
        in_time = self._spent <= SHARE * (now - self._started)
        if (starts and step > 0) or not (last or in_time):
            return
        try:
            if isinstance(self._config, CrocConfig):
                self.draw(self._config, weights, step)
        finally:  # a page without pictures is better than none
            if not starts:
                write_report([self._folder], self._folder / FILE)
            self._spent += time.perf_counter() - now

    def draw(self, config: CrocConfig, weights: dict[str, Tensor], step: int) -> None:
        """The clusters of a few fixed images, if any can be read.

        On the CPU with a copy of the teacher, so the run's own networks, their modes and torch's
        random state stay as they are.
        """
        candidates = range(min(MAX_TRIED, len(self._source)))
        images = dict(islice(read_images(self._source, candidates), IMAGES))
        if not images:
            return
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(config.model, config.views.size_px).eval().requires_grad_(False)
        backbone.load_state_dict(weights)
        canvases = to_canvases(list(images.values()), config.data.max_side_px, config.run.seed)
        views = make_views(canvases, config.views, backbone.patch_px)
        clusters = find_in_views(config, backbone, views, canvases.sample_keys)
        path = picture_path(self._folder, step)
        path.parent.mkdir(exist_ok=True)
        sheet = draw_sheet(views, clusters, backbone.patch_px)
        about = {  # in the JPEG's comment, so that the page can show it as text
            "images": [self._source.name(index)[-80:] for index in images],
            "heads": min(HEADS, clusters.valid.shape[1]),
            "of": clusters.valid.shape[1],
            "k": clusters.count[:, :HEADS].tolist(),
            "shared": clusters.valid[:, :HEADS].sum(dim=-1).tolist(),
            "share": softness(clusters.assignments)[1][:, :HEADS].tolist(),
        }
        with replacing(path) as partial:
            sheet.save(partial, "JPEG", quality=82, comment=json.dumps(about).encode("ascii"))


def draw_sheet(views: Views, clusters: Clusters, patch_px: int) -> Image.Image:
    """Two rows of tiles per image, one for each view: the view, then the clusters of each head."""
    grid, pixels = grid_of(views, patch_px), unnormalize(views.pixels)
    small = F.interpolate(pixels.flatten(0, 1), (TILE_PX, TILE_PX), mode="bicubic", antialias=True)
    tiles = small.clamp(0, 1).unflatten(0, pixels.shape[:2])
    rows = []
    for image in range(tiles.shape[1]):
        columns = [[to_array(tile) for tile in tiles[:, image]]]
        for head in range(min(HEADS, clusters.valid.shape[1])):
            shares, valid = clusters.assignments[:, image, head], clusters.valid[image, head]
            columns.append(paint(tiles[:, image], shares, valid, grid, least_px=TILE_PX))
        rows += [np.concatenate(row, axis=1) for row in zip(*columns)]
    sheet = np.concatenate(rows)
    height, width = (np.arange(side) % TILE_PX for side in sheet.shape[:2])
    sheet[height < GAP_PX] = sheet[:, width < GAP_PX] = 0.5
    return Image.fromarray((255 * sheet).round().astype(np.uint8))
