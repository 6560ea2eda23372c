"""python -m tests.golden.make: write the first ten losses of the demo recipe anew."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from croc.log import read_metrics
from croc.recipes import RECIPES
from croc.train import pretrain

STEPS = 10
PAGE = Path(__file__).parent / "demo.json"
NAMES = ("loss_image", "loss_cluster", "entropy_image", "entropy_cluster", "k_mean")


def first_losses(folder: Path) -> list[dict[str, float]]:
    config = RECIPES["demo"]()
    run = replace(
        config.run,
        folder=str(folder),
        log_every_steps=1,
        stop_after_steps=STEPS,
        accelerator="cpu",
    )
    lines = read_metrics(pretrain(replace(config, run=run), "demo"))
    return [{name: round(line[name], 6) for name in NAMES} for line in lines]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        losses = first_losses(Path(scratch) / "run")
    PAGE.write_text("[\n" + ",\n".join(f"  {json.dumps(line)}" for line in losses) + "\n]\n")
