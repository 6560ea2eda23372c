"""The arithmetic of a step, counted from its matrix products, and how fast the device can be.

What a product is worth is 2 operations for each pair that it multiplies. Counted is what the
method needs: nothing that a kernel computes twice to save memory, and no views, which are no
matrix products on a GPU. The clustering is counted as `paper` defines it.
"""

import statistics
from dataclasses import dataclass

import torch
from torch import nn

from croc.config import ClusterConfig
from croc.lab.bench.clock import Marks
from croc.method.croc import Network
from croc.method.views import VIEWS


@dataclass(frozen=True)
class Ceiling:
    """What the device reached in one large product of matrices."""

    tflops: float
    dtype: str
    side: int


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> Ceiling:
    """Of random numbers: zeros take less power, and the clocks would be higher."""
    side, warm_ups, runs = (8192, 100, 30) if device.type == "cuda" else (768, 2, 5)
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    out = torch.empty_like(a)
    for _ in range(warm_ups):
        torch.mm(a, b, out=out)
    marks = Marks(device)
    for _ in range(runs):
        marks.set()
        torch.mm(a, b, out=out)
    marks.set()
    seconds = statistics.median(marks.apart_ms()) / 1e3
    return Ceiling(2 * side**3 / seconds / 1e12, str(dtype).removeprefix("torch."), side)


def step_flop(network: Network, images: int, view_px: int) -> dict[str, int]:
    """Floating-point operations of one step, by its stages.

    Backward, each product of the student becomes two, but for those of inputs that need no
    gradient: the pixels, and the assignments in the pooling.
    """
    config = network.cluster
    assert config is not None  # croc bench takes no other method
    backbone, head = network.backbone, network.head
    patches = (view_px // backbone.patch_px) ** 2
    attention_heads: int = backbone.vit.blocks[-1].attn.num_heads  # pyright: ignore
    heads = 1 if config.tokens == "last" else attention_heads
    views = VIEWS * images

    embedding = 2 * _weights(backbone.vit.patch_embed) * patches
    tokens = patches + backbone.vit.num_prefix_tokens
    attention = len(backbone.vit.blocks) * 2 * 2 * tokens**2 * backbone.width
    blocks = 2 * _weights(backbone.vit.blocks) * tokens + attention
    saliency = 2 * patches * backbone.width
    pooling = 2 * heads * config.k_start * patches * backbone.width
    trunk = _weights(head.trunk)
    image_head = 2 * (trunk + head.image.directions.numel())
    cluster_head = 2 * (trunk + head.cluster.directions.numel()) * heads * config.k_start
    projection = image_head + cluster_head
    head_width = backbone.width // heads
    located = images * heads * _locate_flop(config, VIEWS * patches, head_width)
    return {
        "teacher": views * (embedding + blocks + saliency),
        "clustering": located + views * pooling,
        "heads": views * (2 * projection + pooling),
        "student": views * (embedding + blocks),
        "backward": views * (embedding + 2 * blocks + 2 * projection + pooling),
    }


def _weights(module: nn.Module) -> int:
    """Of the linear layers and the patches' convolution."""
    products = (each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv2d))
    return sum(each.weight.numel() for each in products)


def _locate_flop(config: ClusterConfig, tokens: int, width: int) -> int:
    """Of one image and head: costs, and unless it is the last step, new centroids and their
    similarities."""
    total = 0
    for k in range(2, config.k_start + 1):
        total += 2 * tokens * k * width
        if k > 2:
            total += 2 * tokens * k * (width + 2) + 2 * k * k * width
    return total
