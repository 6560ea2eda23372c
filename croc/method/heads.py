"""Projection heads: a trunk shared by images and clusters, and separate prototypes."""

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from croc.config import HeadConfig, ImageHeadConfig


class Prototypes(nn.Module):
    """A weight-normalized linear layer without bias: lengths and directions are parameters."""

    def __init__(self, width: int, count: int, unit: bool) -> None:
        super().__init__()
        self.directions = nn.Parameter(nn.Linear(width, count, bias=False).weight.detach().clone())
        self.lengths = nn.Parameter(torch.ones(count, 1), requires_grad=not unit)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch P"]:
        return F.linear(x, self.lengths * F.normalize(self.directions, dim=-1))


class ImageHead(nn.Module):
    """DINO's head."""

    def __init__(self, width: int, config: ImageHeadConfig) -> None:
        super().__init__()
        widths = [width, *[config.hidden] * (config.layers - 1), config.bottleneck]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.trunk = nn.Sequential(*layers[:-1])
        for layer in self.trunk:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        unit = config.unit_prototypes
        self.image = Prototypes(config.bottleneck, config.image_prototypes, unit)

    def images(self, cls: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch P"]:
        return self.image(F.normalize(self.trunk(cls), dim=-1))

    def patches(self, tokens: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch P"]:
        """Logits of single patches: as for images, like in iBOT."""
        return self.images(tokens)

    def prototypes(self) -> Iterator[nn.Parameter]:
        """Of all outputs."""
        for child in self.children():
            if isinstance(child, Prototypes):
                yield from child.parameters()


class ProjectionHead(ImageHead):
    """DINO's head with a second output layer, for clusters."""

    def __init__(self, width: int, config: HeadConfig) -> None:
        super().__init__(width, config)
        unit = config.unit_prototypes
        self.cluster = Prototypes(config.bottleneck, config.cluster_prototypes, unit)

    def clusters(self, centroids: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch P"]:
        return self.cluster(F.normalize(self.trunk(centroids), dim=-1))

    def patches(self, tokens: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch P"]:
        """Logits of single patches, as clusters of one patch."""
        return self.clusters(tokens)
