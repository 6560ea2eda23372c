"""`croc demo`: train, check that it learned without collapsing, draw, and say where all lies."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from croc.config import CrocConfig
from croc.errors import UserError
from croc.eval.command import EvaluateOptions
from croc.eval.evaluate import Request, evaluate
from croc.eval.protocols import linear_protocol
from croc.lab.report import FILE
from croc.lab.report.build import write_report
from croc.lab.show.clusters import draw_clusters, show_clusters
from croc.lab.show.look import look_at_weights
from croc.train.log import read_metrics
from croc.train.loop import pretrain
from croc.train.rank import is_first_process
from croc.weights.shipped import shipped

SHIPPED = "coco-20min"
"""Weights that come with the project, learned from photographs."""
LEAST_GAIN = 5.0
"""Points of mIoU by which training must be ahead."""


def run_demo(config: CrocConfig) -> bool:
    """The demo recipe in a folder of its own, each time anew; whether it learned."""
    folder = _free_folder() if config.run.folder is None else Path(config.run.folder)
    config = replace(config, run=replace(config.run, folder=str(folder)))
    pretrain(config, "demo")
    if not is_first_process():
        return True
    picture = show_clusters(folder, (), None, config.run.seed)
    lines = read_metrics(folder)
    print(f"\ntrained {lines[-1]['step']} steps in {lines[-1]['seconds']:.0f} s")
    learned = [
        judge(lines, "image", config.head.image_prototypes),
        judge(lines, "cluster", config.head.cluster_prototypes),
    ]
    learned.append(compare(folder, config.run.accelerator))
    page = write_report([folder], folder / FILE)  # once more, now that there are scores
    print(f"\n  all of it, in a browser  {page}")
    print(f"  clusters of both views   {picture}")
    print(f"  scores and predictions   {folder / 'evaluation'}")
    print(f"  metrics, a line a step   {folder / 'metrics.jsonl'}")
    print(f"  weights                  {folder / 'checkpoints'}")
    print(f"  curves                   tensorboard --logdir {folder / 'tensorboard'}")
    if SHIPPED in shipped():
        drawn = draw_clusters(look_at_weights(SHIPPED), (), str(folder / f"{SHIPPED}.png"), seed=0)
        print(f"  two photographs, as the weights {SHIPPED} cluster them  {drawn}")
    return all(learned)


def judge(lines: list[dict[str, float | int]], kind: str, prototypes: int) -> bool:
    """A loss must fall, by the mean of its last tenth, and the entropy keep off both ends."""
    losses = [line[f"loss_{kind}"] for line in lines]
    end = fmean(losses[-max(1, len(losses) // 10) :])
    shares = [line[f"entropy_{kind}"] / math.log(prototypes) for line in lines]
    print(
        f"  {kind:8} loss {losses[0]:.3f} → {end:.3f}, "
        f"teacher's entropy {min(shares):.0%} … {max(shares):.0%} of log P"
    )
    if min(shares) < 0.05 or max(shares) > 0.95:
        print("           the entropy left 5 … 95%: the teacher collapsed")
        return False
    if end >= losses[0]:
        print("           the loss did not fall")
        return False
    return True


def compare(folder: Path, device: Literal["auto", "cpu", "cuda"]) -> bool:
    """Linear segmentation of scenes by the features learned, and by those of the same network
    before its first step; whether they are ahead."""
    to = str(folder / "evaluation")
    request = Request("linear", "scenes", linear_protocol("scenes"))
    trained, untrained = (
        evaluate(EvaluateOptions(weights, "scenes", to, device=device), [request], show=False)[0]
        for weights in (str(folder), f"random:{folder}")
    )
    gain = trained.scores["mIoU"] - untrained.scores["mIoU"]
    print(
        f"  features linear segmentation {trained.scores['mIoU']:.1f} mIoU, "
        f"{untrained.scores['mIoU']:.1f} before training"
    )
    if gain < LEAST_GAIN:
        print(f"           that is {gain:.1f} points ahead, {LEAST_GAIN} were expected")
    return gain >= LEAST_GAIN


def _free_folder() -> Path:
    for number in range(1, 10_000):
        folder = Path(f"runs/demo-{number}")
        if not folder.exists():
            return folder
    raise UserError("runs/ holds too many demos: remove some")
