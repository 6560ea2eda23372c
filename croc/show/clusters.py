"""`croc show clusters`: from a run and some photographs to the picture of their clusters."""

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from croc.backbone import Backbone
from croc.checkpoint import checkpoints, load_checkpoint, load_module
from croc.config import CrocConfig
from croc.data import ImageSource, UndecodableImage, decode_image, open_source, place_on_canvas
from croc.errors import UserError
from croc.methods.network import Network, locate
from croc.randomness import sample_key
from croc.run_folder import PAGE, parse_config, read_config
from croc.show.figures import cluster_figure
from croc.types import Canvases, Clusters, Views
from croc.views import make_views
from croc.weights.page import LARGEST_PX, read_page
from croc.weights.shipped import build_exported, find_weights, say_shipped

SHOWN = 4
PICTURES = (".png", ".jpg", ".pdf", ".svg")


def show_clusters(run: Path, images: tuple[str, ...], to: str | None, seed: int) -> Path:
    """Write the picture and return where it lies."""
    config, teacher, step = load_teacher(run)
    path = _picture_path(run / "clusters.png", to)
    canvases = _canvases(_pictures(config, images), config.data.canvas_px, seed)
    _draw(f"{run.name}, step {step}", config, teacher.backbone, canvases, path)
    return path


def show_clusters_of_weights(spec: str, images: tuple[str, ...], to: str | None, seed: int) -> Path:
    """The same for shipped weights, or another file of `croc export`."""
    config, backbone, name = load_exported(spec)
    path = _picture_path(Path(f"{name}-clusters.png"), to)
    if not images:
        raise UserError("--weights come without photographs: name some")
    canvases = _canvases(_pictures(config, images), config.data.canvas_px, seed)
    _draw(name, config, backbone, canvases, path)
    return path


def _draw(
    name: str, config: CrocConfig, backbone: Backbone, canvases: Canvases, path: Path
) -> None:
    views, clusters = find_clusters(config, backbone, canvases)
    tokens, k = config.cluster.tokens, config.cluster.k_start
    cluster_figure(views, clusters, path, f"{name}: {tokens}, K from {k}")


def _picture_path(default: Path, to: str | None) -> Path:
    path = Path(to) if to else default
    if path.suffix not in PICTURES:
        raise UserError(f"--to {path}: give it an ending out of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write the picture in: make it first")
    return path


def load_teacher(run: Path) -> tuple[CrocConfig, Network, int]:
    """A run's configuration, the teacher of its last checkpoint, and the step of that."""
    if not (run / PAGE).is_file():
        raise UserError(f"{run} holds no run: give the folder that `croc pretrain` wrote")
    config, recipe = read_config(run / PAGE)
    if not isinstance(config, CrocConfig):
        raise UserError(f"{run} ({recipe}) is no run of CrOC, and other methods know no clusters")
    found = checkpoints(run)
    if not found:
        raise UserError(f"{run} has no checkpoint yet: train until the first is written")
    state = load_checkpoint(found[-1])
    teacher = Network(config, drop_path=0.0)
    load_module(teacher, state, "teacher")
    return config, teacher.eval().requires_grad_(False), state["step"]


def load_exported(spec: str) -> tuple[CrocConfig, Backbone, str]:
    """The configuration that a file of `croc export` holds, its backbone, and its name."""
    path = find_weights(spec)
    page = read_page(path) if path.is_file() else None
    if page is None:
        raise UserError(
            f"--weights {spec}: give a file of croc export ({say_shipped()}); a run's folder is "
            "for --run"
        )
    config, recipe = parse_config(page.config, f"what {path} says of itself")
    if not isinstance(config, CrocConfig):
        raise UserError(f"{path} ({recipe}) is not of CrOC, and other methods know no clusters")
    sizes = (config.views.size_px, config.data.canvas_px, config.cluster.k_start)
    if max(*sizes, config.cluster.sinkhorn_iterations) > LARGEST_PX:
        raise UserError(f"{path} asks for views or clusters of impossible size")
    backbone = build_exported(path, page)
    return config, backbone.eval().requires_grad_(False), path.stem


@torch.no_grad()
def find_clusters(
    config: CrocConfig, backbone: Backbone, canvases: Canvases
) -> tuple[Views, Clusters]:
    """What the training step sees: two augmented views and their joint clusters."""
    views = make_views(canvases, config.views, backbone.patch_px)
    tokens = backbone.describe(views.pixels, config.cluster.tokens)
    return views, locate(tokens, views, canvases.keys, config.cluster)


def _pictures(config: CrocConfig, images: tuple[str, ...]) -> list[np.ndarray]:
    if not images:
        return list(islice(_readable(open_source(config.data, config.run.seed)), SHOWN))
    pictures = []
    for name in images:
        try:
            pictures.append(decode_image(Path(name).read_bytes(), config.data.canvas_px))
        except (OSError, UndecodableImage) as error:
            raise UserError(f"{name} cannot be read as a photograph: {error}") from None
    return pictures


def _readable(source: ImageSource) -> Iterator[np.ndarray]:
    for index in range(len(source)):
        with contextlib.suppress(UndecodableImage):
            yield source.read(index)


def _canvases(pictures: list[np.ndarray], canvas_px: int, seed: int) -> Canvases:
    pixels = np.stack([place_on_canvas(picture, canvas_px) for picture in pictures])
    sizes = [picture.shape[:2] for picture in pictures]
    keys = [sample_key(seed, 0, index) for index in range(len(pictures))]
    return Canvases(torch.from_numpy(pixels), torch.tensor(sizes), torch.tensor(keys))
