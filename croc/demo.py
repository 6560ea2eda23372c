"""`croc demo`: train, check that it learned without collapsing, draw, and say where all lies."""

import math
from dataclasses import replace
from pathlib import Path

from croc.config import CrocConfig
from croc.errors import UserError
from croc.log import read_metrics
from croc.show.clusters import show_clusters
from croc.train import pretrain


def run_demo(config: CrocConfig) -> None:
    """The demo recipe in a folder of its own, each time anew."""
    folder = _free_folder() if config.run.folder is None else Path(config.run.folder)
    config = replace(config, run=replace(config.run, folder=str(folder)))
    pretrain(config, "demo")
    picture = show_clusters(folder, (), None, config.run.seed)
    lines = read_metrics(folder)
    first, last = lines[0], lines[-1]
    entropies = {
        "image": math.log(config.head.image_prototypes),
        "cluster": math.log(config.head.cluster_prototypes),
    }
    print(f"\ntrained {last['step']} steps in {last['seconds']:.0f} s")
    for kind, most in entropies.items():
        shares = [line[f"entropy_{kind}"] / most for line in lines]
        print(
            f"  {kind:8} loss {first[f'loss_{kind}']:.3f} → {last[f'loss_{kind}']:.3f}, "
            f"teacher's entropy {min(shares):.0%} … {max(shares):.0%} of log P"
        )
        if not all(0.05 < share < 0.95 for share in shares):
            print(f"  the {kind} entropy left 5 … 95%: the teacher collapsed or learned nothing")
    print(f"\n  clusters of both views   {picture}")
    print(f"  metrics, a line a step   {folder / 'metrics.jsonl'}")
    print(f"  weights                  {folder / 'checkpoints'}")
    print(f"  curves                   tensorboard --logdir {folder / 'tensorboard'}")


def _free_folder() -> Path:
    for number in range(1, 10_000):
        folder = Path(f"runs/demo-{number}")
        if not folder.exists():
            return folder
    raise UserError("runs/ holds too many demos: remove some")
