"""`croc demo`: train, check that it learned without collapsing, and draw the result."""

import math
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Literal

from croc.config import CrocConfig
from croc.io import read_metrics
from croc.lab.api import evaluate
from croc.lab.report.hook import ReportHook
from croc.lab.report.page import FILE, write_report
from croc.lab.show import ShowClusters
from croc.lab.show.clusters import draw_clusters
from croc.lab.show.look import look_at_run, look_at_weights
from croc.signals import is_first_process
from croc.train.loop import pretrain
from croc.weights.open import bundled_weights

SHIPPED = "coco-20min"
LEAST_GAIN = 5.0
"""Points of mIoU that training must gain."""


def run_demo(config: CrocConfig) -> bool:
    """Train the demo recipe in a new folder; whether it learned."""
    free = (Path(f"runs/demo-{number}") for number in count(1))
    folder = Path(config.run.folder or next(path for path in free if not path.exists()))
    pretrain(replace(config, run=replace(config.run, folder=str(folder))), "demo", ReportHook)
    if not is_first_process():
        return True
    picture = folder / "clusters.png"
    draw_clusters(look_at_run(folder), ShowClusters(seed=config.run.seed)).savefig(picture)
    lines = read_metrics(folder)
    print(f"\ntrained {lines[-1]['step']} steps in {lines[-1]['seconds']:.0f} s")
    learned = [
        judge(lines, "image", config.head.image_prototypes),
        judge(lines, "cluster", config.head.cluster_prototypes),
        compare(folder, config.run.accelerator),
    ]
    report = write_report([folder], folder / FILE)  # again, now with the scores
    print(f"\n  report, for a browser      {report}")
    print(f"  clusters of both views     {picture}")
    print(f"  scores and predictions     {folder / 'evaluation'}")
    print(f"  metrics                    {folder / 'metrics.jsonl'}")
    print(f"  weights                    {folder / 'checkpoints'}")
    print(f"  curves                     tensorboard --logdir {folder / 'tensorboard'}")
    if SHIPPED in bundled_weights():
        drawn = folder / f"{SHIPPED}.png"
        draw_clusters(look_at_weights(SHIPPED), ShowClusters()).savefig(drawn)
        print(f"  clusters of two photos, with the weights {SHIPPED}  {drawn}")
    return all(learned)


def judge(lines: list[dict[str, float | int]], kind: str, prototypes: int) -> bool:
    """The loss must fall (to the mean of its last tenth), and the entropy stay in 5 … 95% of
    log P."""
    losses = [line[f"loss_{kind}"] for line in lines]
    end = fmean(losses[-max(1, len(losses) // 10) :])
    shares = [line[f"entropy_{kind}"] / math.log(prototypes) for line in lines]
    print(
        f"  {kind:8} loss {losses[0]:.3f} → {end:.3f}, "
        f"teacher entropy {100 * min(shares):.0f}–{max(shares):.0%} of log P"
    )
    if collapsed := min(shares) < 0.05 or max(shares) > 0.95:
        print("           the entropy left 5 … 95%: the teacher collapsed")
    elif end >= losses[0]:
        print("           the loss did not fall")
    return not collapsed and end < losses[0]


def compare(folder: Path, device: Literal["auto", "cpu", "cuda"]) -> bool:
    """Whether linear segmentation of scenes has improved over the untrained network."""
    trained, untrained = (
        evaluate("linear", weights, "scenes", results=folder / "evaluation", device=device)
        for weights in (folder, f"random:{folder}")
    )
    after, before = trained.scores["mIoU"], untrained.scores["mIoU"]
    print(f"  features linear segmentation {after:.1f} mIoU, {before:.1f} before training")
    if after - before < LEAST_GAIN:
        print(f"           a gain of {after - before:.1f} points; at least {LEAST_GAIN} expected")
    return after - before >= LEAST_GAIN
