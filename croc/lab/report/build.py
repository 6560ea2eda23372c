"""From run folders to the page: one HTML file, which loads nothing and whose
Content-Security-Policy allows only its own scripts and styles, by their hashes."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from croc.errors import UserError
from croc.io import replacing
from croc.lab.report.pictures import cluster_pictures, to_data_url
from croc.lab.report.reading import Run, Series, find_scores, is_number, read_run
from croc.train.health import too_soft

WEB = Path(__file__).parent.parent / "web"
STYLES = ("style.css", "charts.css", "report.css")
SCRIPTS = ("dom.js", "curves.js", "shared.js", "charts.js", "gestures.js", "report.js")
MAX_RUNS = 16
COLOURS = 8
# These keep a page under 10 MB: points of all curves together (at most and at least so many of
# each), bytes of all pictures of clusters and of predictions, bars of all classes.
MAX_POINTS, MAX_CURVE_POINTS, MIN_CURVE_POINTS = 80_000, 1500, 60
MAX_CLUSTER_BYTES, MAX_PREDICTION_BYTES = 4_000_000, 1_500_000
MAX_BARS = 3000
MAX_VALUE_LETTERS = 400

METRICS = {
    "Losses": {
        "loss": ("Loss", "what is minimised"),
        "loss_image": ("Image loss", "cross-entropy with the teacher"),
        "loss_cluster": ("Cluster loss", "the same for shared centroids"),
    },
    "Teacher": {
        "entropy_image": ("Teacher entropy, images", "0: one prototype; log P: uniform"),
        "entropy_cluster": ("Teacher entropy, clusters", "0: one prototype; log P: uniform"),
        "kl_image": ("KL, images", "what the student has yet to learn"),
        "kl_cluster": ("KL, clusters", "what the student has yet to learn"),
    },
    "Clusters": {
        "k_mean": ("Mean K", "clusters per head, 2 to K start"),
        "effective_clusters": ("Effective clusters", "per token, 1 (hard) to K"),
        "largest_share": ("Largest share", "of a token, 1/K to 1 (hard)"),
        "valid_share": ("Valid share", "of clusters, present in both views"),
    },
    "Dense features": {
        "place": ("Variance by position", "share that the position explains"),
        "image": ("Variance by image", "share that the image explains"),
        "neighbors": ("Correlation of neighbors", "of adjacent patch tokens"),
        "rank": ("Effective rank", "of the patch tokens; 1: all alike"),
        "agreement": ("Agreement", "clusters matched across views"),
    },
    "Optimizer": {
        "gradient_norm": ("Gradient norm", "before clipping"),
        "rate": ("Learning rate", "by its schedule"),
        "weight_decay": ("Weight decay", "by its schedule"),
    },
    "Speed": {
        "images_per_s": ("Images per second", "between two lines of the log"),
        "seconds": ("Seconds", "since the run was last started"),
    },
}


def write_report(folders: Sequence[Path], to: Path, scores: Sequence[Path] = ()) -> Path:
    """The page of one run, or of several side by side."""
    page = report(folders, scores)
    with replacing(to, shared=True) as partial:  # names of files may be invalid text
        partial.write_text(page, encoding="utf-8", errors="replace", newline="\n")
    return to


def report(folders: Sequence[Path], score_files: Sequence[Path] = ()) -> str:
    if len(folders) > MAX_RUNS:
        raise UserError(f"{len(folders)} runs are too many for one page: give at most {MAX_RUNS}")
    runs = [read_run(folder) for folder in folders]
    names, pictures, notes = [run.name for run in runs], [], []
    for run in runs:
        if names.count(run.name) > 1:
            run.name = str(run.folder)
        shown, unreadable = cluster_pictures(run.folder, MAX_CLUSTER_BYTES // len(runs))
        pictures.append(shown)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        notes += [prefix + note for note in run.notes + unreadable]
    cards = _score_cards(find_scores(runs, score_files), notes)
    speeds = [(index, *speed) for index, run in enumerate(runs) for speed in _speeds(run)]
    sections = {
        "curves": any(run.metrics for run in runs),
        "clusters": any(pictures),
        "scores": cards,
        "speed": speeds,
        "configuration": True,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"colour": _colour, "brief": brief, "short": short}
    return environment.get_template("report.html").render(
        _assets(),
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        sections=[name for name, content in sections.items() if content],
        time=datetime.now(UTC),
        notes=notes,
        runs=runs,
        facts=[list(_facts(run)) for run in runs],
        cards=cards,
        speeds=speeds,
        options=_options(runs),
        data={"charts": _charts(runs), "runs": _curves(runs, pictures)},
    )


def _assets() -> dict[str, Markup]:
    """Our own styles and scripts, and the policy that allows them and forbids all others."""

    def read(*names: str) -> str:
        return "".join((WEB / name).read_text(encoding="utf-8") for name in names)

    script = f'(() => {{\n"use strict";\n{read(*SCRIPTS)}}})();\n'
    texts = {"style": read(*STYLES), "theme": read("theme.js"), "script": script}
    style, *scripts = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in texts.values()
    )
    texts["policy"] = (
        f"default-src 'none'; img-src data:; style-src {style}; script-src {' '.join(scripts)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return {name: Markup(text) for name, text in texts.items()}


def _charts(runs: Sequence[Run]) -> dict[str, list[tuple[str, str, str]]]:
    """Metric, title and explanation by group, for every metric that a run has: known ones in their
    order, then others by name. Agreement by chance is the agreement's reference line instead."""
    names = {name for run in runs for name in run.metrics} - {"agreement_chance"}
    known = {name: text for metrics in METRICS.values() for name, text in metrics.items()}
    others = {name: (name, "") for name in sorted(names - known.keys())}
    return {
        group: [(name, *text) for name, text in metrics.items() if name in names]
        for group, metrics in (METRICS | {"Other metrics": others}).items()
    }


def _curves(runs: Sequence[Run], pictures: Sequence[Any]) -> list[dict[str, Any]]:
    count = sum(len(run.metrics) for run in runs)
    points = max(MIN_CURVE_POINTS, min(MAX_CURVE_POINTS, MAX_POINTS // max(1, count)))
    return [
        {
            "name": run.name,
            "colour": _colour(index),
            "batch": run.options.get("optim.batch"),
            "perEpoch": run.steps_per_epoch,
            "curves": {name: thin(series, points) for name, series in run.metrics.items()},
            "references": _references(run),
            "pictures": pictures[index],
        }
        for index, run in enumerate(runs)
    ]


def thin(series: Series, points: int) -> dict[str, list[Any]]:
    """A curve as it is or, if it is too long, the last step, mean, minimum and maximum of each of
    so many buckets. Six digits are more than a screen shows, and a third of the bytes."""

    def rounded(values: np.ndarray) -> list[float]:
        return [float(f"{value:.6g}") for value in values.tolist()]

    steps, values = np.array(series.steps), np.array(series.values, dtype=float)
    if len(steps) <= points:
        return {"x": steps.tolist(), "y": rounded(values)}
    starts = np.linspace(0, len(steps), points, endpoint=False).astype(int)
    ends = np.append(starts[1:], len(steps))
    return {
        "x": steps[ends - 1].tolist(),
        "y": rounded(np.add.reduceat(values, starts) / (ends - starts)),
        "lo": rounded(np.minimum.reduceat(values, starts)),
        "hi": rounded(np.maximum.reduceat(values, starts)),
    }


def _references(run: Run) -> dict[str, dict[str, Any]]:
    """Horizontal lines to compare a metric with; one that `fits` is always within the axis."""
    options = run.options.get

    def log_p(level: str) -> float | None:
        prototypes = options(f"head.{level}_prototypes")
        return prototypes and math.log(prototypes)

    chance = (
        run.metrics["agreement_chance"].values[-1:] if "agreement_chance" in run.metrics else []
    )
    lines = {
        "effective_clusters": ("hard", 1, True),
        "largest_share": ("hard", 1, True),
        "valid_share": ("one half", 0.5, True),
        "entropy_image": ("log P", log_p("image"), True),
        "entropy_cluster": ("log P", log_p("cluster"), True),
        "kl_image": ("log P", log_p("image"), False),
        "kl_cluster": ("log P", log_p("cluster"), False),
        "k_mean": ("K start", options("cluster.k_start"), True),
        "gradient_norm": ("clipped at", options("optim.clip_gradient"), False),
        "agreement": ("chance", *(chance or [None]), True),
    }
    return {
        name: {"label": label, "value": value, "fits": fits}
        for name, (label, value, fits) in lines.items()
        if value
    }


def _facts(run: Run) -> Iterator[tuple[str, str, bool | None]]:
    """Name, value and, where that can be judged, whether it is healthy. The mean of the last tenth
    of the lines is a metric's final value."""
    values = {name: series.values for name, series in run.metrics.items()}
    final = {name: fmean(v[-max(1, len(v) // 10) :]) for name, v in values.items()}
    if "loss" in final:
        yield "loss", f"{short(values['loss'][0])} → {short(final['loss'])}", None
    for level in ("image", "cluster"):
        name, prototypes = f"entropy_{level}", run.options.get(f"head.{level}_prototypes", 0)
        if name in final and prototypes > 1:
            share = final[name] / math.log(prototypes)
            yield f"entropy, {level}s", f"{share:.0%} of log P", 0.05 <= share <= 0.95
    if "k_mean" in final:
        yield "mean K", f"{final['k_mean']:.1f}", None
    if "effective_clusters" in final and "k_mean" in final:
        clusters = f"{final['effective_clusters']:.1f} of {final['k_mean']:.1f}"
        yield "clusters per token", clusters, not too_soft(final)
    if "valid_share" in final:
        yield "valid share", f"{final['valid_share']:.0%}", final["valid_share"] > 0.5
    if "images_per_s" in values:
        yield "images per second", short(median(values["images_per_s"])), None
    if "seconds" in values:
        # Each start of a run counts from 0: the ends of all stretches add up.
        seconds = values["seconds"]
        ends = [one for one, following in pairwise(seconds) if following < one]
        yield "time", str(timedelta(seconds=int(sum(ends) + seconds[-1]))), None


def _score_cards(scores: Sequence[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """One card per protocol and data set, best score first; adds to the notes what is left out."""
    cards: dict[tuple[str, str], dict[str, Any]] = {}
    bars = size = 0
    for score in sorted(scores, key=lambda score: -score["main"]):
        names = {name: score[name] for name in ("protocol", "data")}
        card = cards.setdefault(tuple(names.values()), names | {"scores": [], "classes": []})
        card["scores"].append(score)
        path, score["source"] = score["picture"], None
        if path is None:
            continue
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                source = to_data_url(picture)
        except OSError:
            notes.append(f"the picture {path.name} cannot be read and is left out")
            continue
        size += len(source)
        if size <= MAX_PREDICTION_BYTES:
            score["source"] = source
        else:
            notes.append(f"{path.name} is left out: the page would be too large")
    for card in cards.values():
        classes = dict.fromkeys(name for score in card["scores"] for name in score["classes"])
        bars += len(classes) * len(card["scores"])
        if bars <= MAX_BARS:
            card["classes"] = list(classes)
        elif classes:
            notes.append(f"{card['protocol']}, {card['data']}: too many classes to show")
    return list(cards.values())


def _speeds(run: Run) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Label, summary and milliseconds by stage of each setting in the folder's bench.json."""
    path = run.folder / "bench.json"
    if not path.exists():
        return
    bench = json.loads(path.read_text(encoding="utf-8"))
    for setting in bench["settings"]:
        figures = setting.get("figures") or {}  # none for a setting that did not fit
        if not figures.get("split_ms"):
            continue
        device, peak = bench["hardware"], figures.get("peak_gib")
        about = f"{device['cpu'] if device['gpu'] == 'no GPU' else device['gpu']} · "
        about += f"{short(figures['images_per_s'])} images per second"
        about += f" · {peak:.2f} GiB of GPU memory" if peak else ""
        yield setting["label"], about, figures["split_ms"]


def _options(runs: Sequence[Run]) -> dict[str, Any]:
    """What differs between the runs, in one row per option; the rest by section."""
    differing, shared = {}, {}
    for name in dict.fromkeys(name for run in runs for name in run.options):
        values = [json.dumps(run.options[name]) if name in run.options else "" for run in runs]
        texts = [_option_text(run.options[name]) if name in run.options else "" for run in runs]
        if len(set(values)) > 1:
            differing[name] = texts
        else:
            section, _, last = name.rpartition(".")
            shared.setdefault(section, {})[last] = texts[0]
    return {"differing": differing, "shared": shared}


def _option_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        rounded = json.loads(
            json.dumps(value), parse_float=lambda text: float(f"{float(text):.6g}")
        )
        value = json.dumps(rounded, ensure_ascii=False)
    return value if len(value) <= MAX_VALUE_LETTERS else f"{value[:MAX_VALUE_LETTERS]} …"


def _colour(run: int | None) -> str:
    """The CSS classes of a run's colour: after eight runs the colours repeat, dashed; gray for
    what belongs to none."""
    if run is None:
        return "run-none"
    return f"run-{run % COLOURS}" + (" dashed" if run >= COLOURS else "")


def brief(value: Any) -> str:
    """A score, however it is nested, in few digits."""
    if isinstance(value, list):
        return " ".join(map(brief, value[:12]))
    if isinstance(value, dict):
        return " ".join(f"{name}: {brief(each)}" for name, each in list(value.items())[:12])
    if isinstance(value, float):
        return f"{value:.1f}" if is_number(value) else "–"
    return "–" if value is None else str(value)[:80]


def short(value: float) -> str:
    """1,234,567 and 0.001234: four digits or all whole ones."""
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"
