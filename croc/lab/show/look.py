"""The network to draw, from a run or from weights, and its input from photographs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from croc.config import (
    CONFIG_FILE,
    CrocConfig,
    ModelConfig,
    PretrainConfig,
    parse_config,
    read_config,
)
from croc.data.decode import WHOLE_PX, UndecodableImage, decode_image, place_on_canvas
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.method.photometric import normalize
from croc.method.randomness import sample_key
from croc.method.types import Canvases, Views
from croc.weights.checkpoint import checkpoint_path, checkpoints, open_run, step_of, untrained
from croc.weights.open import bundled_hint, find_weights
from croc.weights.record import RunRecord, build_recorded, read_record


@dataclass(frozen=True)
class Look:
    """A network, its configuration, and its title in pictures."""

    title: str
    config: PretrainConfig
    backbone: Backbone
    folder: Path | None = None
    """The run's; None for weights."""

    def __post_init__(self) -> None:
        self.backbone.eval().requires_grad_(False)

    @property
    def croc(self) -> CrocConfig:
        if not isinstance(self.config, CrocConfig):
            reason = "was not trained by CrOC: other methods have no clusters"
            raise UserError(f"{self.title} {reason}")
        return self.config


def look_at_run(run: Path, step: int | None = None) -> Look:
    """The teacher of a run's last checkpoint, or of the one at `step`; 0 is untrained."""
    if not (run / CONFIG_FILE).exists():
        raise UserError(f"{run} is not a run folder; for weights, pass --weights")
    config, _ = read_config(run / CONFIG_FILE)
    title = run.resolve().name
    if step == 0:
        return Look(f"{title}, untrained", config, untrained(config), run)
    paths = checkpoints(run)
    path = paths[-1] if paths and step is None else checkpoint_path(run, step or 0)
    if path not in paths:
        steps = ", ".join(["0 (untrained)", *(str(step_of(path)) for path in paths)])
        of_step = "" if step is None else f" of step {step}"
        raise UserError(f"{run} has no checkpoint{of_step}, only of {steps}")
    backbone, config, record = open_run(run, path)
    return Look(f"{title}, step {record.step:,}", config, backbone, run)


def look_at_weights(spec: str) -> Look:
    """random:NAME, bundled weights by name, a run, or a file of `croc export`, possibly
    untrusted."""
    kind, _, name = spec.partition(":")
    if kind == "random":
        config = CrocConfig(model=ModelConfig(name))
        return Look(f"{name}, untrained", config, untrained(config))
    path = find_weights(spec)
    if (path / CONFIG_FILE).exists():
        return look_at_run(path)
    record = read_record(path) if path.is_file() else None
    if not isinstance(record, RunRecord):
        raise UserError(
            f"--weights {spec}: pass a run folder, a file written by croc export, random:NAME or "
            f"bundled weights ({bundled_hint()})"
        )
    config, _ = parse_config(record.config, f"the metadata of {path}")
    return Look(path.stem, config, build_recorded(path, record))


def read_photograph(name: str, longest_px: int = WHOLE_PX) -> UInt8[np.ndarray, "h w 3"]:
    """The picture, rotated upright, with its longer side reduced to at most `longest_px`."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(f"{name} is a folder: pass image files, such as {name.rstrip('/')}/*.jpg")
    try:
        return decode_image(path.read_bytes(), longest_px)
    except (OSError, UndecodableImage) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{name} cannot be read as an image: {reason}") from None


def to_canvases(pictures: list[np.ndarray], canvas_px: int, seed: int) -> Canvases:
    pixels = np.stack([place_on_canvas(picture, canvas_px) for picture in pictures])
    sizes = [picture.shape[:2] for picture in pictures]
    return Canvases(torch.from_numpy(pixels), torch.tensor(sizes), keys_of(seed, len(pictures)))


def keys_of(seed: int, count: int) -> Int64[Tensor, "{count}"]:
    return torch.tensor([sample_key(seed, 0, index) for index in range(count)])


def whole_patches(size: tuple[int, ...], longer_px: int, patch_px: int) -> tuple[int, int]:
    """Height and width with this longer side, both rounded to whole patches."""
    height, width = (
        max(1, round(side * longer_px / (max(size) * patch_px))) * patch_px for side in size
    )
    return height, width


def resize(pixels: Tensor, size: tuple[int, int]) -> Float[Tensor, "3 _ _"]:
    """Resize bytes, or floats in 0 … 1, bicubically; to floats in 0 … 1."""
    pixels = pixels / 255 if pixels.dtype == torch.uint8 else pixels
    return F.interpolate(pixels[None], size=size, mode="bicubic", antialias=True)[0].clamp(0, 1)


def whole_view(picture: UInt8[np.ndarray, "H W 3"], side_px: int, patch_px: int) -> Views:
    """The whole image as the only view, resized to whole patches."""
    height, width, _ = picture.shape
    size = whole_patches((height, width), side_px, patch_px)
    pixels = resize(torch.from_numpy(picture).permute(2, 0, 1), size)
    rows, columns = size[0] // patch_px, size[1] // patch_px
    y = (torch.arange(rows) + 0.5) / rows * (height / max(height, width))
    x = (torch.arange(columns) + 0.5) / columns * (width / max(height, width))
    centers = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    return Views(normalize(pixels)[None, None], centers[None, None])


def grid_of(views: Views, patch_px: int) -> tuple[int, int]:
    """Rows and columns of patches."""
    height, width = views.pixels.shape[-2:]
    return height // patch_px, width // patch_px


def patch_at(
    x: float | int, y: float | int, size: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[int, int]:
    """Row and column of the patch that contains a pixel of the photograph."""
    (height, width), (rows, columns) = size, grid
    if not (0 <= x < width and 0 <= y < height):
        raise UserError(f"{x:g}, {y:g} is outside the image of {width} × {height} px")
    return int(y * rows / height), int(x * columns / width)
