"""DINO on two views: the student predicts the teacher's probabilities of the other view's image."""

from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from croc.config import DinoConfig
from croc.method.backbone import Backbone
from croc.method.compiling import compiled
from croc.method.distillation import Distillation, ImageTargets, Metrics, image_metrics
from croc.method.distributed import process_count
from croc.method.heads import ImageHead
from croc.method.losses import distil
from croc.method.stages import stage
from croc.method.types import Views


class DinoNetwork(nn.Module):
    """A backbone and its projection head: the student is one, the teacher another."""

    def __init__(self, config: DinoConfig, drop_path: float) -> None:
        super().__init__()
        self.student_temperature = config.loss.student_temperature
        self.backbone = Backbone(config.model, config.views.size_px, drop_path)
        self.head = ImageHead(self.backbone.width, config.head)
        self.distil = distil

    def compile_parts(self) -> None:
        self.backbone.compile_parts()
        self.head.compile_parts()
        self.distil = compiled(distil)

    def forward(
        self, pixels: Float[Tensor, "M B 3 h w"], keys: Int64[Tensor, "B"], targets: ImageTargets
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """The student's cross-entropy of each image, and the teacher's own entropy."""
        with stage("student"):
            cls, _ = self.backbone(pixels, keys)
        with stage("heads"):
            images = self.head.images(cls)
        with stage("loss"):
            every = torch.ones_like(keys, dtype=torch.bool)
            t, s = targets.temperature, self.student_temperature
            return self.distil(targets.images, targets.image_center, t, images, s, every)


class Dino(Distillation[ImageTargets]):
    """CrOC without its clusters: with α = 0 it gives the same losses."""

    def __init__(self, config: DinoConfig, device: torch.device, compile: bool = False) -> None:
        super().__init__(config, device, compile, partial(DinoNetwork, config))

    def teach(
        self, views: Views, keys: Int64[Tensor, "B"], temperature: Float[Tensor, ""]
    ) -> ImageTargets:
        with stage("teacher"):
            cls, _ = self.teacher.backbone(views.pixels, keys)
        with stage("heads"):
            images = self.teacher.head.images(cls)
        with stage("loss"):
            return self.image_targets(images, temperature)

    def count(self, parts: list[ImageTargets]) -> Metrics:
        images = sum(part.images.shape[1] for part in parts) * process_count()

        def measure(targets: ImageTargets, loss: Tensor, entropy: Tensor) -> dict[str, Tensor]:
            shares = image_metrics(images, loss, entropy)
            return {"loss": shares["loss_image"], **shares}

        return measure
