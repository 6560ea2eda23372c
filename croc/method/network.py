"""A network of the method: the student is one, the teacher another; and how clusters are found."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from croc.config import ClusterConfig, CrocConfig
from croc.method.backbone import Backbone
from croc.method.clustering.centroids import pool
from croc.method.clustering.cluster import cluster_views
from croc.method.compiling import compiled
from croc.method.distillation import ImageTargets
from croc.method.heads import ProjectionHead
from croc.method.losses import distil
from croc.method.stages import stage
from croc.method.types import Clusters, Tokens, Views


@dataclass(frozen=True)
class Targets(ImageTargets):
    """What the teacher makes of a batch's images and clusters."""

    found: Clusters
    clusters: Float[Tensor, "M B H K L"]
    """Outputs for the centroids."""
    cluster_center: Float[Tensor, "L"]
    cluster_total: Float[Tensor, "L"]
    """Sum of the outputs over views and valid clusters."""


class Network(nn.Module):
    """A backbone and its projection head."""

    def __init__(self, config: CrocConfig, drop_path: float) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.model, config.views.size_px, drop_path)
        self.head = ProjectionHead(self.backbone.width, config.head)
        self.pool, self.distil = pool, distil

    def compile_parts(self) -> None:
        """In parts, since the blocks are alike, and each part can be timed."""
        self.backbone.compile_parts()
        self.head.compile_parts()
        self.pool, self.distil = compiled(pool), compiled(distil)

    def forward(
        self, pixels: Float[Tensor, "M B 3 h w"], keys: Int64[Tensor, "B"], targets: Targets
    ) -> tuple[
        Float[Tensor, "B"], Float[Tensor, "B H K"], Float[Tensor, "B"], Float[Tensor, "B H K"]
    ]:
        """The student's cross-entropies, of each image and of each cluster; and the teacher's own
        entropies, below which they cannot fall."""
        with stage("student"):
            cls, patches = self.backbone(pixels, keys)
        with stage("heads"):
            centroids = self.pool(patches, targets.found.assignments, cls, self.config.cluster)
            images, clusters = self.head.images(cls), self.head.clusters(centroids)
        with stage("loss"):
            t, s = targets.temperature, self.config.loss.student_temperature
            valid = targets.found.valid
            every = torch.ones_like(valid[:, 0, 0])
            image = self.distil(targets.images, targets.image_center, t, images, s, every)
            dense = self.distil(targets.clusters, targets.cluster_center, t, clusters, s, valid)
        return image[0], dense[0], image[1], dense[1]


def locate(
    tokens: Tokens, views: Views, keys: Int64[Tensor, "B"], config: ClusterConfig
) -> Clusters:
    """Join the teacher's tokens of all views and cluster them."""
    weights = saliency(tokens, config)
    return cluster_views(tokens.heads, views.positions, weights, config, keys=keys)


def saliency(tokens: Tokens, config: ClusterConfig) -> Float[Tensor, "M B H N"]:
    """How much each token matters: the CLS attention, or `released`'s cosine with the CLS."""
    if config.variant == "released":
        cls = tokens.cls_heads.float()[..., None, :]
        return torch.cosine_similarity(tokens.heads.float(), cls, dim=-1)
    return tokens.attention / len(tokens.attention)
