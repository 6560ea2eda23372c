"""CrOC: views → teacher's tokens → clusters → centroids → targets; the student predicts them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from croc.config import CrocConfig
from croc.method.clustering.cluster import check_k_start
from croc.method.clustering.softness import softness
from croc.method.compiling import compiled
from croc.method.distillation import Distillation, Metrics, image_metrics
from croc.method.distributed import process_count, sum_over_processes
from croc.method.network import Network, Targets, locate
from croc.method.stages import stage
from croc.method.types import Views
from croc.method.views import VIEWS


class Croc(Distillation[Targets]):
    """DINO, and beside its images the clusters that both views share."""

    config: CrocConfig

    def __init__(self, config: CrocConfig, device: torch.device, compile: bool = False) -> None:
        super().__init__(config, device, compile, partial(Network, config))
        smallest = min(config.views.size_px, config.views.early_px or config.views.size_px)
        patches = (smallest // self.student.backbone.patch_px) ** 2
        check_k_start(config.cluster.k_start, VIEWS * patches)
        self.cluster_center = self._make_center(config.head.cluster_prototypes, device)
        self._locate = compiled(locate) if compile else locate
        self._softness = compiled(softness) if compile else softness

    def _usual_micro_batch(self, device: torch.device) -> int | None:
        apart = self.config.cluster.variant == "paper"
        return super()._usual_micro_batch(device) if apart else None

    @property
    def modules(self) -> dict[str, nn.Module]:
        return super().modules | {"cluster_center": self.cluster_center}

    def teach(
        self, views: Views, keys: Int64[Tensor, "B"], temperature: Float[Tensor, ""]
    ) -> Targets:
        """The teacher's clusters, and its outputs for every image and centroid."""
        config, teacher = self.config.cluster, self.teacher
        with stage("teacher"):
            tokens = teacher.backbone.describe(views.pixels, config.tokens, keys)
        with stage("clustering"):
            found = self._locate(tokens, views, keys, config)
            centroids = teacher.pool(tokens.patches, found.assignments, tokens.cls, config)
        with stage("heads"):
            images, clusters = teacher.head.images(tokens.cls), teacher.head.clusters(centroids)
        with stage("loss"):
            valid = found.valid.float().expand(clusters.shape[:-1])
            return Targets(
                **vars(self.image_targets(images, temperature)),
                found=found,
                clusters=clusters,
                cluster_center=self.center(self.cluster_center, clusters, valid, temperature),
                cluster_total=self._total(clusters, valid),
            )

    def recentre(self, parts: list[Targets]) -> None:
        super().recentre(parts)
        total = torch.stack([part.cluster_total for part in parts]).sum(dim=0)
        valid = torch.stack([part.found.valid.sum() for part in parts]).sum()
        self.cluster_center.update(total, VIEWS * valid.float())

    def count(self, parts: list[Targets]) -> Metrics:
        return partial(_Counts.of(parts, self.config).metrics, self._softness)


@dataclass(frozen=True)
class _Counts:
    """What the sums of a step are divided by, over all of its parts and processes."""

    images: int
    cluster_scale: Float[Tensor, ""]
    """`paper`: images with a cluster; `released`: clusters of this process, times processes."""
    clusters: Float[Tensor, ""]
    """All chosen K, before pruning."""
    per_image: bool
    alpha: float

    @classmethod
    def of(cls, parts: list[Targets], config: CrocConfig) -> "_Counts":
        found = [targets.found for targets in parts]
        valid = torch.cat([clusters.valid for clusters in found])
        count = torch.cat([clusters.count for clusters in found])
        with_cluster = valid.flatten(1).any(dim=1).sum()
        shared = sum_over_processes(torch.stack([with_cluster, count.sum()]).float())
        per_image = config.cluster.variant == "paper"
        scale = shared[0] if per_image else valid.sum().float() * process_count()
        images = len(valid) * process_count()
        return cls(images, scale.clamp_min(1), shared[1], per_image, config.loss.alpha)

    def weigh(self, valid: Bool[Tensor, "B H K"]) -> Float[Tensor, "B H K"]:
        """The weight of each cluster in the dense loss; over a step and all processes, 1."""
        weights = valid.float() / self.cluster_scale
        if self.per_image:
            weights = weights / valid.sum(dim=(1, 2), keepdim=True).clamp_min(1)
        return weights

    def metrics(
        self,
        softness: Callable[[Tensor], tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]],
        targets: Targets,
        image_loss: Float[Tensor, "B"],
        cluster_loss: Float[Tensor, "B H K"],
        image_entropy: Float[Tensor, "B"],
        cluster_entropy: Float[Tensor, "B H K"],
    ) -> dict[str, Tensor]:
        """The losses, and the health of the run."""
        found = targets.found
        weights = self.weigh(found.valid)
        shares = image_metrics(self.images, image_loss, image_entropy)
        loss_cluster = (weights * cluster_loss).sum()
        entropy_cluster = (weights * cluster_entropy).sum()
        effective, largest = softness(found.assignments)
        samples = self.images * found.count.shape[1]
        return shares | {
            "loss": shares["loss_image"] + self.alpha * loss_cluster,
            "loss_cluster": loss_cluster,
            "entropy_cluster": entropy_cluster,
            "kl_cluster": loss_cluster.detach() - entropy_cluster,
            "k_mean": found.count.sum() / samples,
            "effective_clusters": effective.sum() / samples,
            "largest_share": largest.sum() / samples,
            "valid_share": found.valid.sum() / self.clusters,
        }
