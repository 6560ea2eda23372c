"""CrOC: views → teacher's tokens → clusters → centroids → targets; the student predicts them.

The teacher sees all of the batch first. Then the student passes over it, in one piece or in
micro-batches, each followed by its backward; every weight in the loss is known by then, so
the pieces add up to the same gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from croc.clustering.cluster import check_k_start
from croc.config import CrocConfig
from croc.distributed import process_count, sum_over_processes
from croc.layers import autocast_dtype
from croc.losses import Center, sinkhorn_center, weighted_total
from croc.methods.network import Network, Targets, locate
from croc.optim import update_teacher
from croc.schedules import Settings, teacher_momentum, teacher_temperature
from croc.stages import stage
from croc.types import Canvases, Clusters, Views
from croc.views import VIEWS, make_views


class Croc:
    """Teacher, student and centres, and what one training step does with them."""

    def __init__(self, config: CrocConfig, device: torch.device, compile: bool = False) -> None:
        self.config = config
        self.student = Network(config, config.model.drop_path)
        patches = (config.views.size_px // self.student.backbone.patch_px) ** 2
        check_k_start(config.cluster.k_start, VIEWS * patches)
        self.teacher = Network(config, drop_path=0.0)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.eval().requires_grad_(False).to(device)
        momentum = config.loss.center_momentum
        self.image_center = Center(config.head.image_prototypes, momentum).to(device)
        self.cluster_center = Center(config.head.cluster_prototypes, momentum).to(device)
        self.micro_batch = config.run.micro_batch or _default_micro_batch(config, device)
        self._make_views, self._locate, self._total = make_views, locate, weighted_total
        if compile:
            self._make_views, self._locate = torch.compile(make_views), torch.compile(locate)
            self._total = torch.compile(weighted_total)
            self.student.compile_parts()
            self.teacher.compile_parts()

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All that a checkpoint must hold."""
        return {
            "student": self.student,
            "teacher": self.teacher,
            "image_center": self.image_center,
            "cluster_center": self.cluster_center,
        }

    def accumulate(
        self, fabric: Fabric, student: _FabricModule, canvases: Canvases, settings: Settings
    ) -> dict[str, Tensor]:
        """Gradients of one step; `student` is self.student as the fabric wrapped it.

        Each metric is this process's share of a mean over all: their sum is the metric.
        """
        parts = [self._prepare(fabric, part, settings) for part in self._split(canvases)]
        counts = _Counts.of([targets.found for _, _, targets in parts], self.config)
        metrics: dict[str, Tensor] = {}
        for index, (views, keys, targets) in enumerate(parts):
            with fabric.no_backward_sync(student, enabled=index + 1 < len(parts)):
                losses = student(views.pixels, keys, targets)
                shares = counts.metrics(targets.found, *losses)
                loss = shares["loss_image"] + self.config.loss.alpha * shares["loss_cluster"]
                with stage("backward"):
                    # DDP takes the mean over processes, where the shares are to be added up.
                    fabric.backward(loss * process_count())
            for name, value in {"loss": loss, **shares}.items():
                metrics[name] = metrics.get(name, 0) + value.detach()
        self._recentre([targets for _, _, targets in parts])
        return metrics

    def before_update(self, settings: Settings) -> None:
        """In the first epochs the prototypes keep still."""
        if settings.epoch < self.config.loss.frozen_prototype_epochs:
            head = self.student.head
            for parameter in (*head.image.parameters(), *head.cluster.parameters()):
                parameter.grad = None

    def after_update(self, settings: Settings) -> None:
        with stage("EMA"):
            momentum = teacher_momentum(self.config.loss, settings)
            update_teacher(self.teacher, self.student, momentum)

    def _split(self, canvases: Canvases) -> Iterator[Canvases]:
        size = self.micro_batch or len(canvases.keys)
        for start in range(0, len(canvases.keys), size):
            part = slice(start, start + size)
            yield Canvases(canvases.pixels[part], canvases.sizes[part], canvases.keys[part])

    @torch.no_grad()
    def _prepare(
        self, fabric: Fabric, canvases: Canvases, settings: Settings
    ) -> tuple[Views, Tensor, Targets]:
        # A filled tensor, so that neither a new graph nor a copy to the device is made of it.
        temperature = torch.full(
            (), teacher_temperature(self.config.loss, settings.epoch), device=fabric.device
        )
        config, patch_px = self.config.views, self.teacher.backbone.patch_px
        with fabric.autocast():
            with stage("views"):
                dtype = autocast_dtype(fabric.device, torch.float32)
                views = self._make_views(canvases, config, patch_px, dtype)
            return views, canvases.keys, self.teach(views, canvases.keys, temperature)

    def teach(
        self, views: Views, keys: Int64[Tensor, "B"], temperature: Float[Tensor, ""]
    ) -> Targets:
        """The teacher's clusters, and its outputs for every image and centroid."""
        config, teacher = self.config, self.teacher
        with stage("teacher"):
            tokens = teacher.backbone.describe(views.pixels, config.cluster.tokens)
        with stage("clustering"):
            found = self._locate(tokens, views, keys, config.cluster)
            centroids = teacher.pool(tokens.patches, found.assignments, tokens.cls, config.cluster)
        with stage("heads"):
            images, clusters = teacher.head.images(tokens.cls), teacher.head.clusters(centroids)
        with stage("loss"):
            ones = torch.ones_like(images[..., 0], dtype=torch.float)
            valid = found.valid.float().expand(clusters.shape[:-1])
            image_center, cluster_center = self.image_center.value, self.cluster_center.value
            if config.loss.centring == "sinkhorn":
                image_center = sinkhorn_center(images, ones, temperature)
                cluster_center = sinkhorn_center(clusters, valid, temperature)
            return Targets(
                found=found,
                images=images,
                clusters=clusters,
                image_center=image_center,
                cluster_center=cluster_center,
                temperature=temperature,
                image_total=self._total(images, ones),
                cluster_total=self._total(clusters, valid),
            )

    def _recentre(self, parts: list[Targets]) -> None:
        views, images = parts[0].images.shape[0], sum(part.images.shape[1] for part in parts)
        total = torch.stack([part.image_total for part in parts]).sum(dim=0)
        self.image_center.update(total, torch.full((), float(views * images), device=total.device))
        total = torch.stack([part.cluster_total for part in parts]).sum(dim=0)
        valid = torch.stack([part.found.valid.sum() for part in parts]).sum()
        self.cluster_center.update(total, views * valid.float())


def _default_micro_batch(config: CrocConfig, device: torch.device) -> int | None:
    apart = config.cluster.variant == "paper" and config.loss.centring == "mean"
    return 16 if device.type == "cpu" and apart else None


@dataclass(frozen=True)
class _Counts:
    """What the sums of a step are divided by, over all of its parts and processes."""

    images: int
    cluster_scale: Float[Tensor, ""]
    """`paper`: images with a cluster; `released`: clusters of this process, times processes."""
    clusters: Float[Tensor, ""]
    """All chosen K, before pruning."""
    per_image: bool

    @classmethod
    def of(cls, found: list[Clusters], config: CrocConfig) -> "_Counts":
        valid = torch.cat([clusters.valid for clusters in found])
        count = torch.cat([clusters.count for clusters in found])
        with_cluster = valid.flatten(1).any(dim=1).sum()
        shared = sum_over_processes(torch.stack([with_cluster, count.sum()]).float())
        per_image = config.cluster.variant == "paper"
        scale = shared[0] if per_image else valid.sum().float() * process_count()
        images = len(valid) * process_count()
        return cls(images, scale.clamp_min(1), shared[1], per_image)

    def weigh(self, valid: Bool[Tensor, "B H K"]) -> Float[Tensor, "B H K"]:
        """The weight of each cluster in the dense loss; over a step and all processes, 1."""
        weights = valid.float() / self.cluster_scale
        if self.per_image:
            weights = weights / valid.sum(dim=(1, 2), keepdim=True).clamp_min(1)
        return weights

    def metrics(
        self,
        found: Clusters,
        image_loss: Float[Tensor, "B"],
        cluster_loss: Float[Tensor, "B H K"],
        image_entropy: Float[Tensor, "B"],
        cluster_entropy: Float[Tensor, "B H K"],
    ) -> dict[str, Tensor]:
        """Both losses, and the health of the run."""
        weights = self.weigh(found.valid)
        losses = {
            "loss_image": image_loss.sum() / self.images,
            "loss_cluster": (weights * cluster_loss).sum(),
        }
        entropy_image = image_entropy.sum() / self.images
        entropy_cluster = (weights * cluster_entropy).sum()
        return losses | {
            "entropy_image": entropy_image,
            "entropy_cluster": entropy_cluster,
            "kl_image": losses["loss_image"].detach() - entropy_image,
            "kl_cluster": losses["loss_cluster"].detach() - entropy_cluster,
            "k_mean": found.count.sum() / (self.images * found.count.shape[1]),
            "valid_share": found.valid.sum() / self.clusters,
        }
