"""What changes with the step, as pure functions of it: a resumed run needs no state of them."""

import math
from dataclasses import dataclass, replace

from croc.config import DistillationConfig, OptimConfig, ViewsConfig


@dataclass(frozen=True)
class Settings:
    """Where the run stands, and what its optimiser is set to."""

    step: int
    total_steps: int
    epoch: int
    rate: float
    weight_decay: float


def settings_at(step: int, optim: OptimConfig, steps_per_epoch: int) -> Settings:
    """Linear warm-up from 0, then half a cosine; the rate is scaled by batch / 256."""
    total = optim.epochs * steps_per_epoch
    warmup = optim.warmup_epochs * steps_per_epoch
    peak = optim.rate * optim.batch / 256
    if step < warmup:
        rate = peak * step / max(1, warmup - 1)
    else:
        rate = cosine(peak, optim.rate_end, step - warmup, total - warmup)
    decay = cosine(optim.weight_decay, optim.weight_decay_end, step, total)
    return Settings(step, total, step // steps_per_epoch, rate, decay)


def teacher_momentum(loss: DistillationConfig, settings: Settings) -> float:
    """From its start to 1."""
    return cosine(loss.teacher_momentum, 1.0, settings.step, settings.total_steps)


def teacher_temperature(loss: DistillationConfig, epoch: int) -> float:
    """In equal moves over the warm-up's epochs, by whole epochs."""
    if epoch >= loss.temperature_warmup_epochs - 1:
        return loss.teacher_temperature
    share = epoch / (loss.temperature_warmup_epochs - 1)
    start, end = loss.teacher_temperature_start, loss.teacher_temperature
    return start + (end - start) * share


def views_at(views: ViewsConfig, epoch: int) -> ViewsConfig:
    """Smaller views in the early epochs; the rest of the schedules takes no notice."""
    if views.early_px is None or epoch >= views.early_epochs:
        return views
    low, high = (sigma * views.early_px / views.size_px for sigma in views.blur_sigma)
    return replace(views, size_px=views.early_px, blur_sigma=(low, high))


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Half a cosine from start (step 0) to end (which step `steps` would reach)."""
    return end + (start - end) * (1 + math.cos(math.pi * step / max(1, steps))) / 2
