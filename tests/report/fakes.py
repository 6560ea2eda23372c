"""Folders as runs leave them, without any training; and names that no page should trip over."""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

from croc.lab.report.pictures import picture_path
from croc.train.run_folder import config_page
from tests.tiny import tiny_config

HOSTILE = (
    "<script>window.ran=1</script>",
    "</script><script>window.ran=1</script>",
    "\"'><img src=x onerror=window.ran=1>",
    "a\nb\u2028c\u2029d\u0000e",
    "日本語 🐊 ‮drow",
    "${window.ran=1}`",
)


def line(step: int, offset: float = 0.0, **more: Any) -> dict[str, Any]:
    wave = math.sin(step / 7) / 5
    return {
        "step": step,
        "epoch": (step - 1) // 10,
        "loss": 9 + offset + wave - step / 100,
        "loss_image": 5 + wave,
        "loss_cluster": 4 - step / 100,
        "entropy_image": 2.9 + wave,
        "entropy_cluster": 1.2 + wave,
        "kl_image": 1.0,
        "kl_cluster": 1.1,
        "k_mean": 3.5 + wave,
        "effective_clusters": 1.3 + wave,
        "largest_share": 0.9 + wave / 5,
        "valid_share": 0.8 + wave / 2,
        "gradient_norm": 3 + wave,
        "rate": 1e-3 * step / 200,
        "weight_decay": 0.04,
        "images_per_s": 50 + 10 * wave,
        "seconds": step * 0.4,
        **more,
    }


def make_run(folder: Path, steps: int = 60, offset: float = 0.0, **more: Any) -> Path:
    """The tiny configuration and a line for each step."""
    folder.mkdir(parents=True)
    page = config_page(tiny_config(folder), "tiny")
    page["optim"]["rate"] = 0.02 + offset
    (folder / "config.json").write_text(json.dumps(page))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps(line(step, offset, **more)) + "\n")
    return folder


def add_pictures(run: Path, steps: tuple[int, ...], names: tuple[str, ...] = ("a", "b")) -> None:
    about = {"images": names, "heads": 2, "of": 3, "k": [[4, 5]] * len(names)}
    about |= {"shared": [[3, 2]] * len(names), "share": [[0.931, 0.5]] * len(names)}
    comment = json.dumps(about).encode("ascii")
    for step in steps:
        path = picture_path(run, step)
        path.parent.mkdir(exist_ok=True)
        colour = (step % 256, 120, 60)
        picture = Image.new("RGB", (90, 60 * len(names)), colour)
        picture.save(path, "JPEG", comment=comment)


def add_scores(run: Path, classes: tuple[str, ...] = ("sky", "sea"), **more: Any) -> Path:
    """Two lines, of the run and of its network before training, with a picture."""
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


def add_bench(run: Path, stages: dict[str, float] | None = None, label: str = "batch 8") -> None:
    figures = {
        "split_ms": stages or {"views": 8.0, "teacher": 20.0, "clustering": 12.0, "rest": 2.0},
        "images_per_s": 190.5,
        "peak_gib": None,
    }
    page = {
        "hardware": {"gpu": "no GPU", "cpu": "a processor"},
        "settings": [{"label": label, "figures": figures}],
    }
    (run / "bench.json").write_text(json.dumps(page))
