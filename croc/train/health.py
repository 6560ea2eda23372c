"""Signs that a run is losing what it learns, in its own metrics: said once, never a reason to stop.

The signs are those of self-distillation: a teacher that gives every image the same answer, either
one prototype (entropy 0) or all of them alike (entropy log P), and of the clustering: K that has
stopped choosing, views that share no cluster, or tokens that are spread over most clusters.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from croc.config import CrocConfig, DinoConfig, PretrainConfig

LINES = 20
"""Logged lines in a row that must show a sign."""
ONE, ALIKE = 0.005, 0.999
"""Shares of log P below and above which an entropy tells nothing of the image."""

Metrics = Mapping[str, float]
Sign = tuple[str, tuple[str, Callable[[Metrics], bool]]]
"""What to say, of which metric, and for which values of the metrics."""


def too_soft(metrics: Metrics) -> bool:
    """A token is spread over more than half of the clusters (1.5 of two or three are fine)."""
    return metrics["effective_clusters"] > max(1.5, metrics["k_mean"] / 2)


class Health:
    """Watches the logged metrics of a run."""

    def __init__(self, config: PretrainConfig) -> None:
        self._signs = dict(_signs_of(config))
        self._seen = dict.fromkeys(self._signs, 0)

    def look(self, values: dict[str, float]) -> list[str]:
        """What is to be said after this line."""
        said = []
        for sign, (name, is_bad) in self._signs.items():
            value = values.get(name, math.nan)
            shows = math.isfinite(value) and is_bad(values)  # reported elsewhere if not finite
            self._seen[sign] = self._seen[sign] + 1 if shows else 0
            if self._seen[sign] == LINES:
                said.append(f"{sign} ({name} {values[name]:.4g} in the last {LINES} logged steps)")
        return said


def _signs_of(config: PretrainConfig) -> Iterator[Sign]:
    if not isinstance(config, DinoConfig):
        return
    yield from _entropy_signs("image", config.head.image_prototypes)
    if isinstance(config, CrocConfig) and config.loss.alpha > 0:
        yield from _entropy_signs("cluster", config.head.cluster_prototypes)
        most = config.cluster.k_max or config.cluster.k_start
        if config.cluster.k_select == "cost" and most > 2:
            advice = "K has stopped choosing: look at --cluster.position-weight and sharpness"
            # A whole number, line after line, is the K of every image.
            yield advice, ("k_mean", lambda now: abs(now["k_mean"] - round(now["k_mean"])) < 1e-3)
        yield (
            "no cluster is in both views: larger crops (--views.scale) overlap more",
            ("valid_share", lambda now: now["valid_share"] < 1e-9),
        )
        yield (
            "tokens are spread over more than half of the clusters: try a higher "
            "--cluster.sharpness",
            ("effective_clusters", too_soft),
        )


def _entropy_signs(level: str, prototypes: int) -> Iterator[Sign]:
    name, most = f"entropy_{level}", math.log(prototypes)
    yield (
        f"the {level} level has collapsed to one prototype: try a higher "
        "--loss.teacher-temperature, or --loss.centring sinkhorn",
        (name, lambda now: now[name] <= ONE * most),
    )
    yield (
        f"the {level} level has become uniform: try a lower --loss.teacher-temperature, or "
        "--loss.centring sinkhorn",
        (name, lambda now: now[name] >= ALIKE * most),
    )
