"""Run folders without any training."""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

from croc.config import config_dict
from croc.lab.report.page import picture_path
from tests.tiny import tiny_config


def line(step: int, offset: float = 0.0, **more: Any) -> dict[str, Any]:
    wave = math.sin(step / 7) / 5
    means = {"loss": 9 + offset - step / 100, "loss_image": 5, "loss_cluster": 4 - step / 100}
    means |= {"entropy_image": 2.9, "entropy_cluster": 1.2, "kl_image": 1, "kl_cluster": 1.1}
    means |= {
        "mean_k": 3.5,
        "effective_clusters": 1.3,
        "largest_assignment": 0.8,
        "valid_fraction": 0.8,
    }
    means |= {"gradient_norm": 3, "lr": 1e-3, "weight_decay": 0.04, "images_per_s": 50}
    metrics = {name: mean + wave for name, mean in means.items()}
    times = {"step": step, "epoch": (step - 1) // 10, "seconds": step * 0.4}
    return times | metrics | more


def make_run(folder: Path, steps: int = 60, offset: float = 0.0, **more: Any) -> Path:
    """The tiny configuration and one line per step."""
    folder.mkdir(parents=True)
    config = config_dict(tiny_config(folder), "tiny")
    config["optim"]["lr"] = 0.02 + offset
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.dumps(line(step, offset, **more)) + "\n" for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def add_pictures(run: Path, steps: tuple[int, ...], names: tuple[str, ...] = ("a", "b")) -> None:
    about = {"images": names, "heads": 2, "of": 3, "k": [[4, 5]] * len(names)}
    about |= {"shared": [[3, 2]] * len(names), "share": [[0.931, 0.5]] * len(names)}
    for step in steps:
        path = picture_path(run, step)
        path.parent.mkdir(exist_ok=True)
        picture = Image.new("RGB", (90, 60 * len(names)), (step % 256, 120, 60))
        picture.save(path, "JPEG", comment=json.dumps(about).encode("ascii"))


def add_scores(run: Path, classes: tuple[str, ...] = ("sky", "sea"), **more: Any) -> Path:
    """Two lines, of the run and of its untrained network, with a picture."""
    folder = run / "evaluations"
    (folder / "pictures").mkdir(parents=True)
    Image.new("RGB", (1400, 300), (10, 90, 160)).save(folder / "pictures" / "one.png")
    with (folder / "results.jsonl").open("w") as file:
        for weights, score in ((str(run), 23.25), (f"random:{run}", 13.5)):
            result = {
                "protocol": "linear",
                "data": "scenes",
                "weights": weights,
                "backbone": f"{run.name}@{60 if score > 20 else 0}",
                "weights_hash": weights,
                "scores": {"mIoU": score, "accuracy": 70.0},
                "classes": {name: score + at for at, name in enumerate(classes)},
                "config": {},
                "picture": "pictures/one.png",
                **more,
            }
            file.write(json.dumps(result) + "\n")
    return folder / "results.jsonl"
