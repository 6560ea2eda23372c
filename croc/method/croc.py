"""One training step of CrOC, as in section 3 of the paper; and of DINO, which is CrOC without
clusters.

The teacher sees the whole batch first. Then the student sees it, at once or in micro-batches, each
followed by its backward pass: by then all normalizers of the loss are known, so the gradients of
the micro-batches add up to the gradient of the batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from croc.config import ClusterConfig, CrocConfig, DinoConfig, DistillationConfig, require
from croc.fabric import Fabric, FabricModule
from croc.method.backbone import Backbone
from croc.method.clustering.join_split import check_k_start, cluster, pool, softness
from croc.method.distributed import (
    local_shards,
    process_count,
    skip_gradient_sync,
    sum_over_processes,
)
from croc.method.heads import ImageHead, ProjectionHead
from croc.method.losses import Center, distill_loss, gram_distance, sinkhorn_center, weighted_total
from croc.method.masking import Mask, at_hidden, draw_mask
from croc.method.profiling import profile_range
from croc.method.types import (
    Canvases,
    Clusters,
    ScheduleState,
    Tokens,
    Views,
    autocast_dtype,
    cosine,
)
from croc.method.views import VIEWS, make_views


def cluster_tokens(
    tokens: Tokens, views: Views, sample_keys: Int64[Tensor, "B"], config: ClusterConfig
) -> Clusters:
    """Join the teacher's tokens of both views, locate the clusters in them, split them again."""
    weights = saliency(tokens, config)
    return cluster(tokens.heads, views.positions, weights, config, keys=sample_keys)


def saliency(tokens: Tokens, config: ClusterConfig) -> Float[Tensor, "M B H N"]:
    """How much each token matters: the CLS attention, or `released`'s cosine with the CLS."""
    if config.variant == "released":
        cls = tokens.cls_heads.float()[..., None, :]
        return torch.cosine_similarity(tokens.heads.float(), cls, dim=-1)
    views, patches = tokens.attention.shape[0], tokens.attention.shape[-1]
    if config.saliency == "uniform":
        return torch.full_like(tokens.attention, 1 / (views * patches))
    return tokens.attention / views


@dataclass(frozen=True)
class Targets:
    """What the teacher computes for a micro-batch, for the student to predict."""

    logits: dict[str, Float[Tensor, "M B *items P"]]
    """image: of CLS tokens. cluster: of centroids; not in DINO. patch: of masked patches, with
    --loss.mask-ratio; their views are swapped, because `distill_loss` pairs each view with the
    other one, while masked patches are predicted within the same view."""
    valid: dict[str, Bool[Tensor, "B *items"]]
    """Which of them count: all images, the clusters that are in both views, the masked patches."""
    clusters: Clusters | None = None
    mask: Mask | None = None
    anchor: Float[Tensor, "M B N D"] | None = None
    """Patch tokens of the initial network; only with --anchor.weight."""


class Network(nn.Module):
    """A backbone and its projection head: the student is one, the teacher another."""

    def __init__(self, config: DinoConfig, drop_path: float) -> None:
        super().__init__()
        self.config = config
        self.cluster_config = config.cluster if isinstance(config, CrocConfig) else None
        self.backbone = Backbone(config.model, config.views.size_px, drop_path)
        head: Any = ProjectionHead if self.cluster_config else ImageHead
        self.head = head(self.backbone.width, config.head)
        # Attributes, so that they can be replaced by compiled versions (train/compile.py).
        self.pool, self.distill_loss, self.gram_distance = pool, distill_loss, gram_distance
        if config.loss.mask_ratio > 0:
            self.mask_token = nn.Parameter(torch.zeros(self.backbone.width))

    def forward(
        self,
        pixels: Float[Tensor, "M B 3 h w"],
        sample_keys: Int64[Tensor, "B"],
        targets: Targets,
        centers: dict[str, Float[Tensor, "P"]],
        teacher_temp: Float[Tensor, ""],
    ) -> dict[str, Tensor]:
        """For each image: the student's cross-entropy (loss_image) and the teacher's entropy, its
        lower bound (entropy_image). CrOC adds the same for each cluster, --loss.mask-ratio for
        each masked patch, and --anchor.weight the distance from the anchor's similarities."""
        student_temp = self.config.loss.student_temp
        hidden = None if targets.mask is None else (targets.mask.hidden, self.mask_token)
        with profile_range("student"):
            cls, patches = self.backbone(pixels, sample_keys, hidden)
        with profile_range("heads"):
            logits: dict[str, Any] = {"image": self.head.images(cls)}
            if targets.clusters is not None and self.cluster_config is not None:
                assignments = targets.clusters.assignments
                centroids = self.pool(patches, assignments, cls, self.cluster_config)
                logits["cluster"] = self.head.clusters(centroids)
            if targets.mask is not None:
                logits["patch"] = self.head.patches(at_hidden(patches, targets.mask, cls))
        with profile_range("loss"):
            losses: dict[str, Tensor] = {}
            for name in logits:
                losses[f"loss_{name}"], losses[f"entropy_{name}"] = self.distill_loss(
                    targets.logits[name],
                    centers[name],
                    teacher_temp,
                    logits[name],
                    student_temp,
                    targets.valid[name],
                )
            if targets.anchor is not None:
                losses["loss_anchor"] = self.gram_distance(patches, targets.anchor)
        return losses


class Croc:
    """Teacher, student and the centers of the teacher's outputs, and one step with them.

    A method owns its networks; the loop owns data, optimizer, devices, logs and checkpoints.
    """

    def __init__(self, config: DinoConfig, device: torch.device) -> None:
        self.config, self.views_config = config, config.views
        self.cluster_config = config.cluster if isinstance(config, CrocConfig) else None
        self.is_released = getattr(self.cluster_config, "variant", None) == "released"
        self.alpha = config.loss.alpha if isinstance(config, CrocConfig) else 0.0
        self.student = Network(config, config.model.drop_path)
        self.teacher = Network(config, drop_path=0.0)
        self._check_sizes()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.eval().requires_grad_(False).to(device)
        momentum = config.loss.center_momentum
        prototypes = {"image": config.head.image_prototypes}
        if isinstance(config, CrocConfig):
            prototypes["cluster"] = config.head.cluster_prototypes
        if config.loss.mask_ratio > 0:
            prototypes["patch"] = prototypes.get("cluster", prototypes["image"])
        self.centers = {name: Center(p, momentum).to(device) for name, p in prototypes.items()}
        self.temp = torch.zeros((), device=device)
        self.anchor, self.anchor_weight = None, torch.zeros((), device=device)
        if config.anchor.weight > 0:
            self.anchor = Backbone(config.model, config.views.size_px).to(device)
            self.anchor.eval().requires_grad_(False)
        self.micro_batch_size = config.run.micro_batch
        # On the CPU, micro-batches by default, if the images of a batch are independent.
        if device.type == "cpu" and not self.is_released and config.loss.centering == "mean":
            self.micro_batch_size = config.run.micro_batch or 16
        # Attributes, so that they can be replaced by compiled versions (train/compile.py).
        self.make_views, self.cluster_tokens = make_views, cluster_tokens
        self.weighted_total, self.softness = weighted_total, softness

    def _check_sizes(self) -> None:
        views, patch_px = self.config.views, self.teacher.backbone.patch_px
        require(
            views.early_px is None or views.early_px % patch_px == 0,
            f"--views.early-px {views.early_px} is not a whole number of {patch_px} px patches",
        )
        if self.cluster_config:
            smallest = min(views.size_px, views.early_px or views.size_px)
            check_k_start(self.cluster_config.k_start, VIEWS * (smallest // patch_px) ** 2)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint contains. Evaluations use the teacher."""
        modules: dict[str, nn.Module] = {
            "student": self.student,
            "teacher": self.teacher,
            **{f"{name}_center": center for name, center in self.centers.items()},
        }
        if self.anchor is not None:
            modules["anchor"] = self.anchor
        return modules

    @property
    def backbones(self) -> list[Backbone]:
        """All backbones initialized from --init."""
        anchor = [self.anchor] if self.anchor is not None else []
        return [self.student.backbone, self.teacher.backbone, *anchor]

    def set_schedule(self, schedule: ScheduleState) -> None:
        # In place, so that a CUDA graph reads it and nothing is copied to the device.
        self.temp.fill_(teacher_temp(self.config.loss, schedule.epoch))
        self.views_config = self.config.views.at_epoch(schedule.epoch)
        start, end = self.config.anchor.weight, self.config.anchor.weight_end
        end = start if end is None else end
        self.anchor_weight.fill_(cosine(start, end, schedule.step, schedule.total_steps))

    def compute_gradients(
        self, fabric: Fabric, student: FabricModule, canvases: Canvases
    ) -> dict[str, Tensor]:
        """Compute the gradients of one step, left in the student's parameters; return the metrics.

        `student` is self.student as wrapped by Fabric. Each returned value is this process's
        contribution; the sum over processes is the metric. Every batch must launch the same kernels
        in the same order, since the step may be captured as a CUDA graph.
        """
        micro_batches = []
        with torch.no_grad(), fabric.autocast():
            for part in canvases.split(self.micro_batch_size):
                with profile_range("views"):  # two crops and their positions E
                    dtype = autocast_dtype(fabric.device, torch.float32)
                    patch_px = self.teacher.backbone.patch_px
                    views = self.make_views(part, self.views_config, patch_px, dtype)
                targets = self.compute_targets(views, part.sample_keys)
                micro_batches.append((views.pixels, part.sample_keys, targets))
            all_targets = [targets for _, _, targets in micro_batches]
            with profile_range("loss"):
                centers = {name: self._center(name, all_targets) for name in self.centers}
            weights = self.loss_weights(all_targets)
        metrics: dict[str, Tensor] = {}
        for index, (pixels, sample_keys, targets) in enumerate(micro_batches):
            with skip_gradient_sync(fabric, student, is_last=index + 1 == len(micro_batches)):
                losses = student(pixels, sample_keys, targets, centers, self.temp)
                means = {
                    name: (weights[index][name.partition("_")[2]] * values).sum()
                    for name, values in losses.items()
                }
                loss = self.total_loss(means)
                with profile_range("backward"):
                    # DDP takes the mean over processes, but the contributions must be summed.
                    fabric.backward(loss * process_count())
            for name, value in {"loss": loss, **means}.items():
                metrics[name] = metrics.get(name, 0) + value.detach()
        return metrics | self.other_metrics(metrics, all_targets, weights)

    @torch.no_grad()
    def compute_targets(self, views: Views, sample_keys: Int64[Tensor, "B"]) -> Targets:
        """The clusters, and the teacher's outputs for images, clusters and masked patches."""
        teacher, config = self.teacher, self.cluster_config
        clusters = centroids = mask = anchor = None
        if config is None:
            with profile_range("teacher"):
                cls, patches = teacher.backbone(views.pixels, sample_keys)
        else:
            with profile_range("teacher"):
                tokens = teacher.backbone.forward_tokens(views.pixels, config.tokens, sample_keys)
                cls, patches = tokens.cls, tokens.patches
            with profile_range("clustering"):
                clusters = self.cluster_tokens(tokens, views, sample_keys, config)
                centroids = teacher.pool(patches, clusters.assignments, cls, config)
        with profile_range("heads"):
            logits = {"image": teacher.head.images(cls)}
            valid = {"image": torch.ones_like(sample_keys, dtype=torch.bool)}
            if clusters is not None:
                logits["cluster"] = teacher.head.clusters(centroids)
                valid["cluster"] = clusters.valid
            if "patch" in self.centers:
                mask = draw_mask(sample_keys, patches.shape[2], self.config.loss.mask_ratio)
                logits["patch"] = teacher.head.patches(at_hidden(patches, mask, cls)).flip(0)
                valid["patch"] = mask.valid
        if self.anchor is not None:
            with profile_range("anchor"):
                _, anchor = self.anchor(views.pixels)
            valid["anchor"] = valid["image"]
        return Targets(logits, valid, clusters, mask, anchor)

    def _center(self, name: str, targets: list[Targets]) -> Float[Tensor, "P"]:
        """The center of this step: the moving mean, which then moves on, or the Sinkhorn center of
        the batch."""
        logits = [x.logits[name] for x in targets]
        weights = [x.valid[name].float().expand(y.shape[:-1]) for x, y in zip(targets, logits)]
        if self.config.loss.centering == "sinkhorn":
            return sinkhorn_center(logits, weights, self.temp)
        total = torch.stack([self.weighted_total(x, w) for x, w in zip(logits, weights)]).sum(0)
        count = torch.stack([x.valid[name].sum() for x in targets]).sum().float()
        return self.centers[name].update(total, VIEWS * count)

    def loss_weights(self, targets: list[Targets]) -> list[dict[str, Tensor]]:
        """The weights of the images, clusters and masked patches of each micro-batch. Those of one
        kind sum to 1 over the step and all processes, and are 0 for items that are not valid.

        Images weigh the same, and so do patches. The weight of an image that has any valid clusters
        is shared by these; in `released`, all valid clusters of a process weigh the same.
        """
        weights = [{name: valid.float() for name, valid in x.valid.items()} for x in targets]
        if "cluster" in self.centers and not self.is_released:
            for each in weights:
                each["cluster"] /= each["cluster"].sum(dim=(1, 2), keepdim=True).clamp_min(1)
        own = {name: torch.stack([x[name].sum() for x in weights]).sum() for name in weights[0]}
        sums = dict(zip(own, sum_over_processes(torch.stack(list(own.values())))))
        if self.is_released:  # the contributions of the processes are then a mean
            sums["cluster"] = own["cluster"] * process_count()
        return [{name: w / sums[name].clamp_min(1) for name, w in each.items()} for each in weights]

    def total_loss(self, means: dict[str, Tensor]) -> Float[Tensor, ""]:
        """The paper's total loss, and the terms of our additions."""
        loss_glob, loss_dense = means["loss_image"], means.get("loss_cluster")
        loss = loss_glob if loss_dense is None else self.alpha * loss_dense + loss_glob
        if "loss_patch" in means:
            loss = loss + means["loss_patch"]
        if "loss_anchor" in means:
            loss = loss + self.anchor_weight * means["loss_anchor"]
        return loss

    def other_metrics(
        self, means: dict[str, Tensor], targets: list[Targets], weights: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """How far the student is from the teacher, and how the images are clustered."""
        metrics = {"kl_image": means["loss_image"] - means["entropy_image"]}
        if "cluster" not in self.centers:
            return metrics
        metrics["kl_cluster"] = means["loss_cluster"] - means["entropy_cluster"]
        for x, weight in zip(targets, weights):
            assert x.clusters is not None
            effective, largest = self.softness(x.clusters.assignments)
            k = x.clusters.count.float()
            for name, by_head in {
                "mean_k": k,
                "valid_fraction": x.clusters.valid.sum(dim=-1) / k,
                "effective_clusters": effective,
                "largest_assignment": largest,
            }.items():
                mean = (weight["image"] * by_head.mean(dim=1)).sum()
                metrics[name] = metrics.get(name, 0) + mean
        return metrics

    def freeze_prototypes(self, schedule: ScheduleState) -> None:
        """In the first epochs the prototypes get no gradient."""
        if schedule.epoch < self.config.loss.frozen_prototype_epochs:
            for parameter in self.student.head.prototypes():
                parameter.grad = None

    def update_teacher(self, schedule: ScheduleState) -> None:
        with profile_range("EMA"):
            momentum = teacher_momentum(self.config.loss, schedule)
            ema_update(self.teacher, self.student, momentum)


def teacher_momentum(loss: DistillationConfig, schedule: ScheduleState) -> float:
    """EMA momentum at this step: a cosine schedule from loss.teacher_momentum to 1."""
    return cosine(loss.teacher_momentum, 1.0, schedule.step, schedule.total_steps)


def teacher_temp(loss: DistillationConfig, epoch: int) -> float:
    """Linear over the warm-up, by whole epochs."""
    if epoch >= loss.temp_warmup_epochs - 1:
        return loss.teacher_temp
    share = epoch / (loss.temp_warmup_epochs - 1)
    start, end = loss.teacher_temp_start, loss.teacher_temp
    return start + (end - start) * share


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """teacher ← momentum · teacher + (1 − momentum) · student."""
    averages: list[Tensor] = local_shards(p.data for p in teacher.parameters())
    latest: list[Tensor] = local_shards(p.data for p in student.parameters())
    torch._foreach_lerp_(averages, latest, 1 - momentum)  # pyright: ignore[reportPrivateImportUsage]
