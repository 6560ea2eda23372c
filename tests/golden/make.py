"""python -m tests.golden.make NAME ...: rewrite these goldens, or all of them.

losses   the first losses of every method, centering and variant of the clustering
scores   of the bundled weights by every protocol, on a few synthetic scenes
features of the bundled weights, some numbers of them
runs     two small runs with their checkpoints, and the losses of the steps after them
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import croc
from croc.config import LossConfig, PretrainConfig
from croc.io import read_metrics
from croc.photographs import own_photographs
from croc.recipes import RECIPES, without_clusters
from croc.train.loop import pretrain
from tests.tiny import tiny_config, tiny_mae

HERE = Path(__file__).parent
STEPS = 10
SHIPPED = "coco-20min"
NAMES = ("loss_image", "loss_cluster", "entropy_image", "entropy_cluster", "mean_k")
"""Those of them that a method has."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "linear": {"steps": 60},
    "kmeans": {"seeds": 2},
    "within": {"seeds": 1},
    "incontext": {},
    "video": {"short_px": 96},
}
RUN_STEPS, LATER_STEPS = 4, 3


def tiny(method: str, centering: Any = "mean", variant: Any = "paper") -> PretrainConfig:
    if method == "mae":
        return tiny_mae()
    config = tiny_config()
    config = replace(
        config,
        loss=replace(config.loss, centering=centering),
        cluster=replace(config.cluster, variant=variant),
    )
    return config if method == "croc" else without_clusters(config)


CONFIGS: dict[str, Callable[[], PretrainConfig]] = {
    "demo": RECIPES["demo"],
    "mae": partial(tiny, "mae"),
    **{f"dino {centering}": partial(tiny, "dino", centering) for centering in ("mean", "sinkhorn")},
    **{
        f"croc {variant} {centering}": partial(tiny, "croc", centering, variant)
        for variant in ("paper", "released")
        for centering in ("mean", "sinkhorn")
    },
}


def first_losses(name: str, folder: Path) -> list[dict[str, float]]:
    config = CONFIGS[name]()
    optim = replace(config.optim, epochs=max(config.optim.epochs, STEPS))
    return losses_of(replace(config, optim=optim), folder, STEPS)


def losses_of(config: PretrainConfig, folder: Path, steps: int) -> list[dict[str, float]]:
    """Trains until `steps`, and says the losses of every step from the first."""
    run = replace(
        config.run, folder=str(folder), log_every_steps=1, stop_after_steps=steps, accelerator="cpu"
    )
    lines = read_metrics(pretrain(replace(config, run=run), "golden"))
    names = [each for each in NAMES if each in lines[0]] or ["loss"]
    return [{each: round(line[each], 6) for each in names} for line in lines]


def score(protocol: Any) -> dict[str, float]:
    result = croc.evaluate(
        protocol, SHIPPED, "scenes", device="cpu", workers=0, **PROTOCOLS[protocol]
    )
    numbers = {name: each for name, each in result.scores.items() if isinstance(each, float)}
    return {name: round(value, 4) for name, value in numbers.items()}


def some_features() -> list[float]:
    """Every thousandth number of the tokens of a photograph."""
    (cat, _) = croc.features(own_photographs(), SHIPPED, size_px=192)
    return [round(value, 4) for value in cat.patches.flatten()[::1000].tolist()]


def fixture_config(method: str) -> PretrainConfig:
    """As small as timm has a ViT, since its checkpoint is in the repository."""
    config = tiny_config()
    config = replace(
        config,
        model=replace(config.model, name="test_vit", depth=1),
        head=replace(config.head, hidden=16, bottleneck=8),
        loss=LossConfig(temp_warmup_epochs=2, teacher_momentum=0.9),
        run=replace(config.run, report=False, checkpoint_every_steps=RUN_STEPS),
    )
    return config if method == "croc" else without_clusters(config)


def make_run(method: str) -> None:
    folder = HERE / "runs" / method
    shutil.rmtree(folder, ignore_errors=True)
    losses_of(fixture_config(method), folder, RUN_STEPS)
    shutil.rmtree(folder / "tensorboard")
    written = folder / "config.json"
    written.write_text(written.read_text().replace(str(folder), f"runs/{method}"))
    with tempfile.TemporaryDirectory() as scratch:
        again = shutil.copytree(folder, Path(scratch) / "run")
        later = losses_of(fixture_config(method), again, RUN_STEPS + LATER_STEPS)
    write(folder / "later.json", later)


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main(names: list[str]) -> None:
    if "losses" in names:
        with tempfile.TemporaryDirectory() as scratch:
            write(
                HERE / "losses.json",
                {name: first_losses(name, Path(scratch) / name) for name in CONFIGS},
            )
    if "scores" in names:
        write(HERE / "scores.json", {protocol: score(protocol) for protocol in PROTOCOLS})
    if "features" in names:
        write(HERE / "features.json", some_features())
    if "runs" in names:
        for method in ("croc", "dino"):
            make_run(method)


if __name__ == "__main__":
    main(sys.argv[1:] or ["losses", "scores", "features", "runs"])
