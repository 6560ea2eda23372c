"""Self-distillation, which DINO and CrOC share: a student learns from its own moving average.

The teacher sees all of the batch first. Then the student passes over it, in one piece or in
micro-batches, each followed by its backward; every weight in the loss is known by then, so
the pieces add up to the same gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int64
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from croc.config import DinoConfig, require
from croc.method.backbone import Backbone
from croc.method.compiling import compiled
from croc.method.distributed import process_count
from croc.method.layers import autocast_dtype
from croc.method.losses import Center, sinkhorn_center, weighted_total
from croc.method.optim import update_teacher
from croc.method.schedules import Settings, teacher_momentum, teacher_temperature, views_at
from croc.method.sharding import hold_gradients
from croc.method.stages import stage
from croc.method.types import Canvases, Views
from croc.method.views import make_views


@dataclass(frozen=True)
class ImageTargets:
    """What the teacher makes of the images of a batch, and how it becomes probabilities."""

    images: Float[Tensor, "M B P"]
    """Outputs for the CLS tokens."""
    image_center: Float[Tensor, "P"]
    temperature: Float[Tensor, ""]
    image_total: Float[Tensor, "P"]
    """Sum of the outputs over views and images, for the moving mean."""


Targets = TypeVar("Targets", bound=ImageTargets)
Metrics = Callable[..., dict[str, Tensor]]


class Distillation(ABC, Generic[Targets]):
    """Teacher, student and the centre of the images, and what one step does with them."""

    def __init__(
        self,
        config: DinoConfig,
        device: torch.device,
        compile: bool,
        network: Callable[[float], Any],
    ) -> None:
        """`network` makes one with a given stochastic depth."""
        self.config = config
        self.student = network(config.model.drop_path)
        self.teacher = network(0.0)
        early_px, patch_px = config.views.early_px, self.teacher.backbone.patch_px
        require(
            early_px is None or early_px % patch_px == 0,
            f"--views.early-px {early_px} is not a whole number of {patch_px} px patches",
        )
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.eval().requires_grad_(False).to(device)
        self.image_center = self._make_center(config.head.image_prototypes, device)
        self.temperature = torch.zeros((), device=device)
        self.views = config.views
        self.micro_batch = config.run.micro_batch or self._usual_micro_batch(device)
        self._make_views, self._total = make_views, weighted_total
        if compile:
            self._make_views = compiled(make_views)
            self._total = compiled(weighted_total)
            self.student.compile_parts()
            self.teacher.compile_parts()

    def _make_center(self, prototypes: int, device: torch.device) -> Center:
        return Center(prototypes, self.config.loss.center_momentum).to(device)

    def _usual_micro_batch(self, device: torch.device) -> int | None:
        """On the CPU a step in pieces takes less memory, where images are not compared."""
        return 16 if device.type == "cpu" and self.config.loss.centring == "mean" else None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All that a checkpoint must hold."""
        return {
            "student": self.student,
            "teacher": self.teacher,
            "image_center": self.image_center,
        }

    @property
    def backbones(self) -> list[Backbone]:
        return [self.student.backbone, self.teacher.backbone]

    @abstractmethod
    def teach(
        self, views: Views, keys: Int64[Tensor, "B"], temperature: Float[Tensor, ""]
    ) -> Targets:
        """What the student is to predict."""

    @abstractmethod
    def count(self, parts: list[Targets]) -> Metrics:
        """What makes metrics of a part's targets and the student's answer, "loss" among them."""

    def before_gradients(self, settings: Settings) -> None:
        # Into a tensor that stays, so that neither a new graph nor a copy to the device is made.
        self.temperature.fill_(teacher_temperature(self.config.loss, settings.epoch))
        self.views = views_at(self.config.views, settings.epoch)

    def accumulate(
        self, fabric: Fabric, student: _FabricModule, canvases: Canvases
    ) -> dict[str, Tensor]:
        """Gradients of one step; `student` is self.student as the fabric wrapped it.

        Each metric is this process's share of a mean over all: their sum is the metric.
        """
        pieces = split(canvases, self.micro_batch)
        parts = [self._prepare(fabric, piece) for piece in pieces]
        measure = self.count([targets for _, _, targets in parts])
        metrics: dict[str, Tensor] = {}
        for index, (views, keys, targets) in enumerate(parts):
            with hold_gradients(fabric, student, more=index + 1 < len(parts)):
                shares = measure(targets, *student(views.pixels, keys, targets))
                with stage("backward"):
                    # DDP takes the mean over processes, where the shares are to be added up.
                    fabric.backward(shares["loss"] * process_count())
            for name, value in shares.items():
                metrics[name] = metrics.get(name, 0) + value.detach()
        self.recentre([targets for _, _, targets in parts])
        return metrics

    @torch.no_grad()
    def _prepare(self, fabric: Fabric, canvases: Canvases) -> tuple[Views, Tensor, Targets]:
        with fabric.autocast():
            with stage("views"):
                dtype = autocast_dtype(fabric.device, torch.float32)
                views = self._make_views(
                    canvases, self.views, self.teacher.backbone.patch_px, dtype
                )
            return views, canvases.keys, self.teach(views, canvases.keys, self.temperature)

    def image_targets(
        self, images: Float[Tensor, "M B P"], temperature: Float[Tensor, ""]
    ) -> ImageTargets:
        ones = torch.ones_like(images[..., 0], dtype=torch.float)
        center = self.center(self.image_center, images, ones, temperature)
        return ImageTargets(images, center, temperature, self._total(images, ones))

    def center(
        self, moving: Center, outputs: Tensor, weights: Tensor, temperature: Tensor
    ) -> Float[Tensor, "P"]:
        """What is taken from the outputs: their moving mean, or what balances the batch."""
        if self.config.loss.centring == "sinkhorn":
            return sinkhorn_center(outputs, weights, temperature)
        return moving.value

    def recentre(self, parts: list[Targets]) -> None:
        """Move the centre by what the batch has shown."""
        views, images = parts[0].images.shape[0], sum(part.images.shape[1] for part in parts)
        total = torch.stack([part.image_total for part in parts]).sum(dim=0)
        self.image_center.update(total, torch.full((), float(views * images), device=total.device))

    def before_update(self, settings: Settings) -> None:
        """In the first epochs the prototypes keep still."""
        if settings.epoch < self.config.loss.frozen_prototype_epochs:
            for parameter in self.student.head.prototypes():
                parameter.grad = None

    def after_update(self, settings: Settings) -> None:
        with stage("EMA"):
            momentum = teacher_momentum(self.config.loss, settings)
            update_teacher(self.teacher, self.student, momentum)


def split(canvases: Canvases, size: int | None) -> Iterator[Canvases]:
    """A batch in pieces of at most `size` images."""
    size = size or len(canvases.keys)
    for start in range(0, len(canvases.keys), size):
        part = slice(start, start + size)
        yield Canvases(canvases.pixels[part], canvases.sizes[part], canvases.keys[part])


def image_metrics(
    images: int, loss: Float[Tensor, "B"], entropy: Float[Tensor, "B"]
) -> dict[str, Tensor]:
    """The image loss and the teacher's part in it; `images` are those of all processes."""
    loss_image, entropy_image = loss.sum() / images, entropy.sum() / images
    return {
        "loss_image": loss_image,
        "entropy_image": entropy_image,
        "kl_image": loss_image.detach() - entropy_image,
    }
