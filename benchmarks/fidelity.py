"""Do the fast paths learn as the plain ones do? python -m benchmarks.fidelity --data.root PHOTOS

Trains a recipe from the same seeds twice: with everything that makes it fast, and in float32
without compiling and without kernels. Draws the losses, and says how far apart they are beside
how far apart the seeds are.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.command import run
from benchmarks.surroundings import hardware, versions
from croc.config import CrocConfig
from croc.recipes import RECIPES
from croc.train.log import read_metrics
from croc.train.loop import pretrain

PATHS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"precision": "float32", "compile": False, "kernels": False},
}
COLOURS = {"fast": "#d55e00", "plain": "#0072b2"}
METRICS = {
    "loss_image": "image loss",
    "loss_cluster": "cluster loss",
    "entropy_image": "entropy of the teacher, images",
    "entropy_cluster": "entropy of the teacher, clusters",
    "k_mean": "mean K",
    "gradient_norm": "norm of the gradient",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", choices=("coco-vits16", "demo"), default="coco-vits16")
    parser.add_argument("--data.root", dest="root", nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--to", type=Path, default=Path("fidelity.png"), help="JSON goes beside it")
    options = parser.parse_args(arguments)
    if options.seeds < 2 or options.steps < 20:
        parser.error("a spread needs --seeds 2 and --steps 20 at least")
    if options.to.suffix not in (".png", ".pdf", ".svg"):
        parser.error(f"--to {options.to}: name a picture, .png, .pdf or .svg")
    curves: dict[str, Any] = {path: [] for path in PATHS}
    for seed in range(options.seeds):
        for path, changes in PATHS.items():
            lines = losses(shortened(options, seed, changes), options.recipe)
            curves[path].append({name: [line[name] for line in lines] for name in METRICS})
            print(path, "seed", seed, f"last loss {lines[-1]['loss']:.4f}", flush=True)
    report = {
        "date": date.today().isoformat(),
        "hardware": hardware(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "versions": versions(),
        "recipe": options.recipe,
        "steps": options.steps,
        "batch": options.batch,
        "apart": {name: apart(curves, name) for name in METRICS},
        "curves": curves,
    }
    options.to.with_suffix(".json").write_text(json.dumps(report) + "\n")
    draw(curves, options.to)
    for name, distances in report["apart"].items():
        print(f"{name:16}", "  ".join(f"{what} {value:.2e}" for what, value in distances.items()))


def shortened(options: argparse.Namespace, seed: int, changes: dict[str, Any]) -> CrocConfig:
    """The recipe with its schedules in a tenth of their epochs, but the prototypes move at once."""
    config = RECIPES[options.recipe]()
    assert isinstance(config, CrocConfig)
    epochs = config.optim.epochs // 10
    warmup = min(config.optim.warmup_epochs, 1)
    return replace(
        config,
        data=replace(config.data, root=tuple(options.root), subfolders=()),
        loss=replace(config.loss, temperature_warmup_epochs=3, frozen_prototype_epochs=0),
        optim=replace(
            config.optim, batch=options.batch, epochs=max(2, epochs), warmup_epochs=warmup
        ),
        run=replace(
            config.run, seed=seed, stop_after_steps=options.steps, log_every_steps=1, **changes
        ),
    )


def losses(config: CrocConfig, recipe: str) -> list[dict[str, float | int]]:
    with tempfile.TemporaryDirectory() as scratch:
        run = replace(config.run, folder=f"{scratch}/run", checkpoint_every_steps=10**9)
        return read_metrics(pretrain(replace(config, run=run), recipe))


def apart(curves: dict[str, Any], name: str) -> dict[str, float]:
    """Root mean squares over the second half of the steps: between the two paths' means over the
    seeds, and the standard error that the seeds give this difference."""
    fast, plain = (np.array([seed[name] for seed in curves[path]]) for path in PATHS)
    half = fast.shape[1] // 2
    fast, plain = smooth(fast)[:, half:], smooth(plain)[:, half:]
    error = np.sqrt((fast.var(axis=0, ddof=1) + plain.var(axis=0, ddof=1)) / len(fast))
    difference = fast.mean(axis=0) - plain.mean(axis=0)
    return {
        "between paths": rms(difference),
        "standard error": rms(error),
        "between seeds": rms(plain.std(axis=0, ddof=1)),
        "of the value": rms(difference) / rms(plain.mean(axis=0)),
    }


def smooth(curves: np.ndarray, window: int = 10) -> np.ndarray:
    kernel = np.ones(window) / window
    return np.stack([np.convolve(curve, kernel, mode="valid") for curve in curves])


def rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


def draw(curves: dict[str, Any], to: Path) -> None:
    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 3).flat, METRICS.items()):
        for path, colour in COLOURS.items():
            for seed, curve in enumerate(curves[path]):
                style = {"color": colour, "lw": 0.9, "ls": "-" if path == "fast" else "--"}
                axes.plot(curve[name], label=path if seed == 0 else None, **style)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.supxlabel("step")
    figure.savefig(to, dpi=130)


if __name__ == "__main__":
    run(main)
