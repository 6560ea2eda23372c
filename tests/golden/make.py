"""python -m tests.golden.make: write the first losses of the demo and of the baselines anew."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from croc.config import PretrainConfig
from croc.log import read_metrics
from croc.recipes import RECIPES
from croc.train import pretrain
from tests.tiny import tiny_dino, tiny_mae

STEPS = 10
HERE = Path(__file__).parent
CONFIGS = {"demo": RECIPES["demo"], "dino": tiny_dino, "mae": tiny_mae}
NAMES = ("loss_image", "loss_cluster", "entropy_image", "entropy_cluster", "k_mean")
"""Those of them that a method has."""


def page(name: str) -> Path:
    return HERE / f"{name}.json"


def first_losses(name: str, folder: Path) -> list[dict[str, float]]:
    config: PretrainConfig = CONFIGS[name]()
    run = replace(
        config.run,
        folder=str(folder),
        log_every_steps=1,
        stop_after_steps=STEPS,
        accelerator="cpu",
    )
    optim = replace(config.optim, epochs=max(config.optim.epochs, STEPS))
    lines = read_metrics(pretrain(replace(config, run=run, optim=optim), name))
    names = [each for each in NAMES if each in lines[0]] or ["loss"]
    return [{each: round(line[each], 6) for each in names} for line in lines]


if __name__ == "__main__":
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as scratch:
            losses = first_losses(name, Path(scratch) / "run")
        page(name).write_text(
            "[\n" + ",\n".join(f"  {json.dumps(line)}" for line in losses) + "\n]\n"
        )
