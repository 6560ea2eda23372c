"""Batches made of noise like a photograph's, on the device before they are asked for."""

from collections.abc import Iterator
from itertools import cycle

import torch
import torch.nn.functional as F

from croc.config import CrocConfig
from croc.method.randomness import sample_key
from croc.method.types import Canvases

OCTAVES = ((6, 60.0), (24, 30.0), (96, 12.0))
"""Cells along a side, and their contrast: coarse ones are strong, fine ones faint."""


def made_up_canvases(config: CrocConfig, batches: int, device: torch.device) -> Iterator[Canvases]:
    """The same few batches in turn."""
    draw = torch.Generator(device).manual_seed(config.run.seed)
    return cycle([_batch(number, config, draw, device) for number in range(batches)])


def _batch(
    number: int, config: CrocConfig, draw: torch.Generator, device: torch.device
) -> Canvases:
    batch, side = config.optim.batch, config.data.canvas_px
    pixels = torch.full((batch, 3, side, side), 128.0, device=device)
    for cells, contrast in OCTAVES:
        shape = (batch, 3, min(cells, side), min(cells, side))
        noise = torch.randn(shape, generator=draw, device=device)
        pixels += contrast * F.interpolate(noise, size=(side, side), mode="bilinear")
    keys = [sample_key(config.run.seed, 0, number * batch + image) for image in range(batch)]
    return Canvases(
        pixels=pixels.clamp(0, 255).to(torch.uint8),
        # Landscapes of 4 : 3, as most photographs are.
        sizes=torch.tensor([[3 * side // 4, side]], device=device).repeat(batch, 1),
        keys=torch.tensor(keys, device=device),
    )
