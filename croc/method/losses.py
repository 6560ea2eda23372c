"""Self-distillation: centering of the teacher, and the cross-entropy between views."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from croc import kernels
from croc.method.distributed import sum_over_processes


class Center(nn.Module):
    """A moving mean of the teacher's outputs, subtracted from them against collapse."""

    value: Tensor

    def __init__(self, prototypes: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.zeros(prototypes))

    @torch.no_grad()
    def update(self, total: Float[Tensor, "P"], count: Float[Tensor, ""]) -> Float[Tensor, "P"]:
        """Return the mean for this step, and update it for the next one with the mean over all
        processes, where that is finite and if anything was valid."""
        used = self.value.clone()
        packed = sum_over_processes(torch.cat([total, count[None]]))
        mean, count = packed[:-1] / packed[-1].clamp_min(1), packed[-1]
        self.value.lerp_(torch.where((count > 0) & mean.isfinite(), mean, used), 1 - self.momentum)
        return used


def weighted_total(
    outputs: Float[Tensor, "*batch P"], weights: Float[Tensor, "*batch"]
) -> Float[Tensor, "P"]:
    """What a center moves by: the weighted sum of the outputs, in float32."""
    kernel = kernels.find("distill", outputs)
    if kernel is not None:
        return kernel.weighted_total(outputs, weights)
    return (outputs.float() * weights[..., None]).flatten(0, -2).sum(dim=0)


def sinkhorn_center(
    logits: list[Float[Tensor, "... P"]],
    weights: list[Float[Tensor, "..."]],
    temperature: Float[Tensor, ""],
    iterations: int = 3,
) -> Float[Tensor, "P"]:
    """The center with which the prototypes have almost the same mean probability in the batch,
    both views of all its parts together.

    repeat: for p: center[p] += τ · log(P · mean of softmax((logits − center) / τ)[..., p])

    These are Sinkhorn's scalings: the softmax scales the items, the update the prototypes. The
    mean is weighted and over all processes.
    """
    center = torch.zeros_like(logits[0].flatten(0, -2)[0], dtype=torch.float32)
    count = torch.stack([w.sum() for w in weights]).sum()
    for _ in range(iterations):
        totals = [
            (w[..., None] * teacher_probabilities(x, center, temperature)).flatten(0, -2).sum(0)
            for x, w in zip(logits, weights)
        ]
        total = torch.stack(totals).sum(0)
        packed = sum_over_processes(torch.cat([total, count[None]]))
        mean = packed[:-1] / packed[-1].clamp_min(1)
        center = center + temperature * (mean * len(mean)).clamp_min(1e-30).log()
    return center


def teacher_probabilities(
    logits: Float[Tensor, "*batch P"], center: Float[Tensor, "P"], temperature: Float[Tensor, ""]
) -> Float[Tensor, "*batch P"]:
    return ((logits.float() - center) / temperature).softmax(dim=-1)


def distill_loss(
    teacher: Float[Tensor, "M *batch P"],
    center: Float[Tensor, "P"],
    teacher_temp: Float[Tensor, ""],
    student: Float[Tensor, "M *batch P"],
    student_temp: float,
    valid: Bool[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The cross-entropy and the teacher's own entropy, from the outputs of both networks.

    Both are 0 for items that are not valid.
    """
    kernel = kernels.find("distill", student)
    if kernel is not None and kernel.fits(teacher, student):
        loss, teacher_entropy, _ = kernel.distill_loss(
            teacher, center, teacher_temp, student, student_temp, valid
        )
        return loss, teacher_entropy
    probabilities = teacher_probabilities(teacher, center, teacher_temp)
    loss = cross_view_entropy(probabilities, student, student_temp)
    teacher_entropy = entropy(probabilities).mean(dim=0)
    return torch.where(valid, loss, 0.0), torch.where(valid, teacher_entropy, 0.0)


def cross_view_entropy(
    teacher: Float[Tensor, "M *batch P"], student: Float[Tensor, "M *batch P"], temperature: float
) -> Float[Tensor, "*batch"]:
    """Cross-entropy of the student's views with the teacher's other views, one value per item.

    mean over pairs of views i ≠ j: −Σ_p teacher[i, ..., p] · log softmax(student[j] / τ)[..., p]
    """
    views = len(teacher)
    log_student = (student.float() / temperature).log_softmax(dim=-1)
    pairs = [(i, j) for i in range(views) for j in range(views) if i != j]
    total = sum((teacher[i] * log_student[j]).sum(dim=-1) for i, j in pairs)
    return -torch.as_tensor(total) / len(pairs)


def gram_distance(
    student: Float[Tensor, "M B N D"], anchor: Float[Tensor, "M B N D"]
) -> Float[Tensor, "B"]:
    """How much the similarities between the patches of a view differ, one value per image.

    mean over views and pairs of patches i, j: (cos(s[i], s[j]) − cos(a[i], a[j]))²

    In float32, since differences of bfloat16 cosines are mostly rounding errors. The second N × N
    matrix is subtracted from the first in place, to keep only one for the backward pass.
    """
    with torch.autocast(student.device.type, enabled=False):
        a, b = (F.normalize(x.float().flatten(0, 1), dim=-1) for x in (student, anchor))
        difference = (a @ a.mT).baddbmm_(b, b.mT, alpha=-1)
        squares = torch.linalg.vector_norm(difference, dim=(1, 2)).square() / student.shape[2] ** 2
        return squares.unflatten(0, student.shape[:2]).mean(dim=0)


def entropy(probabilities: Float[Tensor, "*batch P"]) -> Float[Tensor, "*batch"]:
    return torch.special.entr(probabilities).sum(dim=-1)
