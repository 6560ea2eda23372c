"""A run's health: non-finite gradients are skipped and counted; collapse is reported.

Collapse never stops a run. One sign is a teacher with the same output for every image, either a
single prototype (entropy 0) or all prototypes equally (entropy log P). Signs in the clustering are
the same K for all images, views that share no cluster, and tokens spread over most clusters. A run
that started from other weights may also drift far from them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from croc.config import CrocConfig, DinoConfig, PretrainConfig
from croc.errors import UserError
from croc.weights.checkpoint import checkpoints

LINES = 20
"""A sign of collapse is reported after this many logged lines in a row."""
ONE, ALIKE = 0.005, 0.999
"""Fractions of log P below and above which the teacher's output says nothing about the image."""
LARGE_DRIFT = 0.25
"""Half the drift of random weights."""

Metrics = Mapping[str, float]
Sign = tuple[str, str, Callable[[Metrics], bool]]
"""A message, the name of its metric, and the condition."""


class Health:
    """Finds signs of collapse in the logged metrics, reported once per occurrence, and drift in the
    gauges."""

    def __init__(self, config: PretrainConfig) -> None:
        self._signs = list(_signs(config))
        self._seen, self._drifted = [0] * len(self._signs), False

    def gauge_warning(self, gauges: Metrics) -> str | None:
        """A warning the first time that the drift is large."""
        if self._drifted or not gauges.get("drift", 0.0) > LARGE_DRIFT:
            return None
        self._drifted = True
        return (
            "the patch similarities have drifted far from the start: try a higher --anchor.weight, "
            f"or a lower --optim.lr (drift {gauges['drift']:.2g}; 0 is unchanged, a network with "
            "random weights has about 0.5)"
        )

    def warnings(self, values: Metrics) -> list[str]:
        """The warnings after a logged line."""
        warnings = []
        for number, (message, name, shows) in enumerate(self._signs):
            finite = math.isfinite(values.get(name, math.nan))  # else reported as skipped steps
            self._seen[number] = self._seen[number] + 1 if finite and shows(values) else 0
            if self._seen[number] == LINES:
                value = f"{name} {values[name]:.4g} in the last {LINES} logged steps"
                warnings.append(f"{message} ({value})")
        return warnings


def too_soft(metrics: Metrics) -> bool:
    """Tokens are spread over more than half of the clusters (and over more than 1.5)."""
    return metrics["effective_clusters"] > max(1.5, metrics["mean_k"] / 2)


def _signs(config: PretrainConfig) -> Iterator[Sign]:
    if not isinstance(config, DinoConfig):
        return
    yield from _entropy_signs("image", config.head.image_prototypes)
    if isinstance(config, CrocConfig) and config.loss.alpha > 0:
        yield from _entropy_signs("cluster", config.head.cluster_prototypes)
        smallest, largest = config.cluster.k_range
        if smallest < largest:
            message = "every image gets the same K: check --cluster.position-weight and sharpness"
            # If the mean stays an integer, every image has that K.
            yield message, "mean_k", lambda now: abs(now["mean_k"] - round(now["mean_k"])) < 1e-3
        message = "no cluster is in both views: larger crops (--views.scale) overlap more"
        yield message, "valid_fraction", lambda now: now["valid_fraction"] < 1e-9
        message = "tokens are spread over most clusters: try a higher --cluster.sharpness"
        yield message, "effective_clusters", too_soft


def _entropy_signs(level: str, prototypes: int) -> Iterator[Sign]:
    name, maximum, instead = f"entropy_{level}", math.log(prototypes), "--loss.centering sinkhorn"
    message = f"the {level} level has collapsed to one prototype: try a higher "
    message += f"--loss.teacher-temp, or {instead}"
    yield message, name, lambda now: now[name] <= ONE * maximum
    message = f"the {level} level has become uniform: try a lower --loss.teacher-temp, or "
    yield message + instead, name, lambda now: now[name] >= ALIKE * maximum


def non_finite_gradient(folder: Path, values: Metrics, steps: range) -> UserError:
    """The error that ends a run whose last steps were all skipped."""
    bad = ", ".join(name for name, value in values.items() if not math.isfinite(value))
    saved = checkpoints(folder)
    left = f"the last checkpoint is {saved[-1].name}" if saved else "there is no checkpoint yet"
    return UserError(
        f"steps {steps[0] + 1} to {steps[-1] + 1} had no finite gradient and were skipped "
        f"(non-finite in the last one: {bad}); {left}: try a lower --optim.lr, "
        "--optim.clip-gradient 3 or --run.precision float32"
    )
