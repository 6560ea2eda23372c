"""Does the fast path train like the reference? python -m benchmarks.fidelity --data.root PHOTOS

Trains a recipe twice from each seed: with all optimizations, and in float32 without compilation
and kernels. Plots the losses, and prints their difference next to that between seeds.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import run, this_device, write_json
from croc.config import CrocConfig
from croc.io import read_metrics
from croc.recipes import RECIPES
from croc.train.loop import pretrain

PATHS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"precision": "float32", "compile": False, "kernels": False},
}
STYLES = {"fast": {"color": "#d55e00", "ls": "-"}, "plain": {"color": "#0072b2", "ls": "--"}}
METRICS = {
    "loss_image": "image loss",
    "loss_cluster": "cluster loss",
    "entropy_image": "entropy of the teacher, images",
    "entropy_cluster": "entropy of the teacher, clusters",
    "mean_k": "mean K",
    "gradient_norm": "norm of the gradient",
}
WINDOW = 10
"""Steps of the moving average."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", choices=("coco-vits16", "demo"), default="coco-vits16")
    parser.add_argument("--data.root", dest="root", nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--to", type=Path, default=Path("fidelity.png"), help="figure, with a JSON")
    options = parser.parse_args(arguments)
    if options.seeds < 2 or options.steps < 2 * WINDOW:
        parser.error("needs at least --seeds 2 and --steps 20")
    if options.to.suffix not in (".png", ".pdf", ".svg"):
        parser.error(f"--to {options.to}: must end in .png, .pdf or .svg")
    curves: dict[str, Any] = {path: [] for path in PATHS}
    for seed in range(options.seeds):
        for path, changes in PATHS.items():
            lines = train(options, seed, changes)
            curves[path].append({name: [line[name] for line in lines] for name in METRICS})
            print(path, "seed", seed, f"last loss {lines[-1]['loss']:.4f}", flush=True)
    results = {name: getattr(options, name) for name in ("recipe", "steps", "batch")}
    distances = {name: compare(curves, name) for name in METRICS}
    write_json(
        options.to.with_suffix(".json"), this_device(), **results, apart=distances, curves=curves
    )
    draw(curves, options.to)
    for name, values in distances.items():
        print(f"{name:16}", "  ".join(f"{key} {value:.2e}" for key, value in values.items()))


def train(
    options: argparse.Namespace, seed: int, changes: dict[str, Any]
) -> list[dict[str, float | int]]:
    """The metrics of each step, with the recipe's schedules shortened to a tenth of the epochs and
    prototypes that are never frozen."""
    config = RECIPES[options.recipe]()
    assert isinstance(config, CrocConfig)
    epochs, warmup = max(2, config.optim.epochs // 10), min(config.optim.warmup_epochs, 1)
    with tempfile.TemporaryDirectory() as scratch:
        config = replace(
            config,
            data=replace(config.data, root=tuple(options.root), subfolders=()),
            loss=replace(config.loss, temp_warmup_epochs=3, frozen_prototype_epochs=0),
            optim=replace(config.optim, batch=options.batch, epochs=epochs, warmup_epochs=warmup),
            run=replace(
                config.run,
                folder=f"{scratch}/run",
                seed=seed,
                stop_after_steps=options.steps,
                log_every_steps=1,
                checkpoint_every_steps=10**9,
                **changes,
            ),
        )
        return read_metrics(pretrain(config, options.recipe))


def compare(curves: dict[str, Any], name: str) -> dict[str, float]:
    """Root mean squares over the second half of the steps: of the difference between the paths'
    means over seeds, of its standard error, and of the deviation between seeds."""
    kernel = np.ones(WINDOW) / WINDOW
    fast, plain = (
        np.stack([np.convolve(seed[name], kernel, "valid") for seed in curves[path]])[
            :, len(curves[path][0][name]) // 2 :
        ]
        for path in PATHS
    )
    error = np.sqrt((fast.var(axis=0, ddof=1) + plain.var(axis=0, ddof=1)) / len(fast))
    difference = fast.mean(axis=0) - plain.mean(axis=0)
    return {
        "between paths": rms(difference),
        "standard error": rms(error),
        "between seeds": rms(plain.std(axis=0, ddof=1)),
        "of the value": rms(difference) / rms(plain.mean(axis=0)),
    }


def rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


def draw(curves: dict[str, Any], to: Path) -> None:
    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 3).flat, METRICS.items()):
        for path, style in STYLES.items():
            for seed, curve in enumerate(curves[path]):
                axes.plot(curve[name], lw=0.9, label=None if seed else path, **style)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.supxlabel("step")
    figure.savefig(to, dpi=130)


if __name__ == "__main__":
    run(main)
