"""Metrics as curves for the page: what they are called, and thinned to what a screen can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from croc.lab.report.reading import Run, Series

POINTS = 80_000
"""On the whole page, about 2.5 MB of numbers at most."""
MOST, LEAST = 1500, 60
"""Points of one curve."""


@dataclass(frozen=True)
class Metric:
    title: str
    about: str
    group: str


LOSSES, TEACHER, CLUSTERS = "Losses", "The teacher's health", "Clusters"
GAUGES = "Dense features"
OPTIMISER, SPEED, OTHERS = "Optimiser", "Speed", "Other metrics"

KNOWN = {
    "loss": Metric("Loss", "what is minimised", LOSSES),
    "loss_image": Metric("Loss of the images", "cross-entropy with the teacher", LOSSES),
    "loss_cluster": Metric("Loss of the clusters", "the same for shared centroids", LOSSES),
    "entropy_image": Metric(
        "Teacher's entropy, images", "0: one prototype; log P: all alike", TEACHER
    ),
    "entropy_cluster": Metric(
        "Teacher's entropy, clusters", "0: one prototype; log P: all alike", TEACHER
    ),
    "kl_image": Metric("KL, images", "what the student has still to learn", TEACHER),
    "kl_cluster": Metric("KL, clusters", "what the student has still to learn", TEACHER),
    "k_mean": Metric("Mean K", "clusters in a head, 2 to K start", CLUSTERS),
    "effective_clusters": Metric("Effective clusters", "of a token, 1 (hard) to K", CLUSTERS),
    "largest_share": Metric("Largest share", "of a token, 1/K to 1 (hard)", CLUSTERS),
    "valid_share": Metric("Valid share", "of the clusters, in both views", CLUSTERS),
    "place": Metric("Variance by place", "share that the place explains", GAUGES),
    "image": Metric("Variance by image", "share that the image explains", GAUGES),
    "rank": Metric("Effective rank", "of the patch tokens; 1: all alike", GAUGES),
    "agreement": Metric("Agreement", "clusters matched across views", GAUGES),
    "gradient_norm": Metric("Gradient's norm", "before it is clipped", OPTIMISER),
    "rate": Metric("Rate", "of the optimiser, by its schedule", OPTIMISER),
    "weight_decay": Metric("Weight decay", "by its schedule", OPTIMISER),
    "images_per_s": Metric("Images a second", "between two lines of the log", SPEED),
    "seconds": Metric("Seconds", "since this start of the run", SPEED),
}
GROUPS = (LOSSES, TEACHER, CLUSTERS, GAUGES, OPTIMISER, SPEED, OTHERS)


def charts(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Every metric that a run has: ours in their order, then others by name. Agreement by chance
    is the reference line of the agreement instead."""
    found = {name for run in runs for name in run.metrics} - {"agreement_chance"}
    names = [name for name in KNOWN if name in found] + sorted(found - KNOWN.keys())
    shown = {name: KNOWN.get(name, Metric(name, "", OTHERS)) for name in names}
    return [{"metric": name, **vars(metric)} for name, metric in shown.items()]


def curves(run: Run, points: int) -> dict[str, dict[str, list[Any]]]:
    return {name: _curve(series, points) for name, series in run.metrics.items()}


def points_each(runs: Sequence[Run]) -> int:
    """How many a curve may have, so that the page stays small however many there are."""
    count = sum(len(run.metrics) for run in runs)
    return max(LEAST, min(MOST, POINTS // max(1, count)))


def _curve(series: Series, points: int) -> dict[str, list[Any]]:
    """As it is or, of too many, each bucket's last step, mean, least and greatest value."""
    steps, values = series.arrays()
    if len(steps) <= points:
        return {"x": steps.tolist(), "y": _rounded(values)}
    starts = np.linspace(0, len(steps), points, endpoint=False).astype(int)
    ends = np.append(starts[1:], len(steps))
    # In halves, so that the sum of values near the largest float stays finite.
    mean = np.add.reduceat(values / 2, starts) / (ends - starts) * 2
    return {
        "x": steps[ends - 1].tolist(),
        "y": _rounded(mean),
        "lo": _rounded(np.minimum.reduceat(values, starts)),
        "hi": _rounded(np.maximum.reduceat(values, starts)),
    }


def _rounded(values: np.ndarray) -> list[float]:
    """Six digits are more than a screen shows, and a third of the bytes."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def references(run: Run) -> dict[str, dict[str, Any]]:
    """Lines to hold a metric against; one that `fits` belongs into the picture always."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("image", "cluster"):
        prototypes = run.whole_option(f"head.{kind}_prototypes")
        if prototypes:
            line = {"label": "log P", "value": math.log(prototypes)}
            found[f"entropy_{kind}"] = line | {"fits": True, "floor": 0}
            found[f"kl_{kind}"] = line | {"fits": False}
    k_start, clip = run.whole_option("cluster.k_start"), run.option("optim.clip_gradient")
    if k_start:
        found["k_mean"] = {"label": "K start", "value": k_start, "fits": True}
    if clip:
        found["gradient_norm"] = {"label": "clipped at", "value": clip, "fits": False}
    chance = run.metrics.get("agreement_chance")
    if chance:
        found["agreement"] = {"label": "chance", "value": chance.values[-1], "fits": True}
    for softness in ("effective_clusters", "largest_share"):
        found[softness] = {"label": "hard", "value": 1, "fits": True}
    found["valid_share"] = {"label": "one half", "value": 0.5, "fits": True}
    return found
