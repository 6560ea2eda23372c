"""The report of run folders: one HTML file, which loads nothing."""

import base64
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import jinja2
import numpy as np
import tyro
from markupsafe import Markup
from PIL import Image

from croc.config import CONFIG_FILE, method_name, parse, read_config
from croc.errors import UserError
from croc.io import read_gauges, read_lines, read_metrics, replacing
from croc.train.health import LARGE_DRIFT, too_soft

FILE = "report.html"
WEB = Path(__file__).parent.parent / "web"
SCORES = ("evaluations/results.jsonl", "evaluation/results.jsonl")
"""Within a run's folder; the second is the demo's."""
COLORS = 8
MAX_POINTS, MAX_PICTURES = 1000, 16
"""Of a curve, and of the clusters of all runs."""
WIDTH_PX = 900
"""Of a picture."""


@dataclass(frozen=True)
class ShowReport:
    """Write curves, clusters, scores and settings of runs as one self-contained HTML page."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run folders; several are compared."""
    to: str | None = None
    """Output file; by default report.html, in the run folder or, for several runs, in the current
    directory."""
    scores: tuple[str, ...] = ()
    """Additional results.jsonl files written by croc evaluate; RUN/evaluations/results.jsonl is
    always read."""


def run_command(arguments: list[str]) -> None:
    """Write the page and print its path."""
    options = parse(ShowReport, arguments, "croc show report")
    if not options.runs:
        raise UserError("pass at least one run folder: croc show report RUN")
    folders = [Path(run) for run in options.runs]
    to = Path(options.to or (folders[0] / FILE if len(folders) == 1 else FILE))
    print(write_report(folders, to, [Path(file) for file in options.scores]))


def write_report(folders: Sequence[Path], to: Path, scores: Sequence[Path] = ()) -> Path:
    """The page of one run, or of several side by side."""
    page = report(folders, scores)
    with replacing(to, shared=True) as partial:  # names of files may be invalid text
        partial.write_text(page, encoding="utf-8", errors="replace", newline="\n")
    return to


def report(folders: Sequence[Path], score_files: Sequence[Path] = ()) -> str:
    runs = [read_run(folder) for folder in folders]
    names, data = [run.name for run in runs], []
    for index, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name = str(run.folder)
        data.append(
            {
                "name": run.name,
                "color": _color(index),
                "perEpoch": run.steps_per_epoch,
                "options": {k: v for k, v in run.options.items() if is_number(v)},
                "curves": {name: thin(series, MAX_POINTS) for name, series in run.metrics.items()},
                "pictures": cluster_pictures(run, MAX_PICTURES // len(runs)),
            }
        )
    cards = score_cards(find_scores(runs, score_files))
    sections = {
        "curves": any(run.metrics for run in runs),
        "clusters": any(run["pictures"] for run in data),
        "scores": cards,
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
    environment.filters |= {"color": _color, "brief": brief, "asset": asset}
    return environment.get_template("report.html").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        sections=[name for name, content in sections.items() if content],
        time=datetime.now(UTC),
        runs=runs,
        facts=[list(_facts(run)) for run in runs],
        cards=cards,
        options=_options(runs),
        data={"runs": data},
    )


def asset(name: str) -> Markup:
    """The content of a script or style sheet of the package."""
    return Markup((WEB / name).read_text(encoding="utf-8"))


Series = list[tuple[int, float]]
"""The steps and values of one metric."""


@dataclass
class Run:
    folder: Path
    name: str
    recipe: str
    method: str
    options: dict[str, Any]
    """By full name, such as optim.batch."""
    metrics: dict[str, Series] = field(default_factory=lambda: defaultdict(list))
    epochs: Series = field(default_factory=list)
    """Step, counted from 0, and epoch of each line."""
    step: int = 0
    """The last one that was logged."""

    @property
    def steps_per_epoch(self) -> int | None:
        """From the logged epochs, where step s is in epoch s // n; None during the first epoch."""
        lower = max((int(step // (epoch + 1)) + 1 for step, epoch in self.epochs), default=1)
        upper = [step // epoch for step, epoch in self.epochs if epoch > 0]
        return lower if upper and lower <= min(upper) else None

    @property
    def progress(self) -> str:
        """The step, and the last one, if the number of steps in an epoch is known yet."""
        last = self.options["optim.epochs"] * (self.steps_per_epoch or 0)
        return f"step {self.step:,}" + (f" of {last:,}" if last >= max(1, self.step) else "")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_run(folder: Path) -> Run:
    """Settings and metrics; only config.json must exist."""
    config, recipe = read_config(folder / CONFIG_FILE)
    options = {
        f"{section}.{name}": value
        for section, values in asdict(config).items()
        for name, value in values.items()
    }
    run = Run(folder, folder.resolve().name, recipe, method_name(config), options)
    metrics = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    for line in [*metrics, *read_gauges(folder)]:
        step, epoch = line.pop("step"), line.pop("epoch", None)
        run.step = max(run.step, step)
        if epoch is not None and step > 0:
            run.epochs.append((step - 1, epoch))
        for name, value in line.items():
            if is_number(value):
                run.metrics[name].append((step, float(value)))
    return run


def thin(series: Series, points: int) -> dict[str, list[Any]]:
    """A curve as it is or, if it has more points, the last step, mean, minimum and maximum of each
    bucket. Six digits are more than a screen shows, and a third of the bytes."""

    def rounded(values: Iterable[float]) -> list[float]:
        return [float(f"{value:.6g}") for value in values]

    steps, values = [step for step, _ in series], np.array([value for _, value in series])
    if len(series) <= points:
        return {"x": steps, "y": rounded(values)}
    buckets = np.array_split(values, points)
    ends = np.cumsum([len(bucket) for bucket in buckets]) - 1
    return {
        "x": [steps[end] for end in ends],
        "y": rounded(bucket.mean() for bucket in buckets),
        "lo": rounded(bucket.min() for bucket in buckets),
        "hi": rounded(bucket.max() for bucket in buckets),
    }


def training_seconds(seconds: Sequence[float]) -> float:
    """The time of all parts of a run; the clock restarts at every resume."""
    ends = [now for now, after in pairwise(seconds) if after < now]
    return sum([*ends, *seconds[-1:]], 0.0)


def _facts(run: Run) -> Iterator[tuple[str, str, bool | None]]:
    """Name, value and whether it is healthy (None if that is unknown). A metric's final value is
    its mean over the last tenth of the lines."""
    values = {name: [value for _, value in series] for name, series in run.metrics.items()}
    final = {name: fmean(x[-max(1, len(x) // 10) :]) for name, x in values.items()}
    if "loss" in final:
        yield "loss", f"{short(values['loss'][0])} → {short(final['loss'])}", None
    for level in ("image", "cluster"):
        name, prototypes = f"entropy_{level}", run.options.get(f"head.{level}_prototypes", 0)
        if name in final and prototypes > 1:
            share = final[name] / math.log(prototypes)
            yield f"entropy, {level}s", f"{share:.0%} of log P", 0.05 <= share <= 0.95
    if "mean_k" in final:
        yield "mean K", f"{final['mean_k']:.1f}", None
    if "effective_clusters" in final and "mean_k" in final:
        clusters = f"{final['effective_clusters']:.1f} of {final['mean_k']:.1f}"
        yield "clusters per token", clusters, not too_soft(final)
    if "valid_fraction" in final:
        yield "valid share", f"{final['valid_fraction']:.0%}", final["valid_fraction"] > 0.5
    if "drift" in values:
        yield "drift", f"{values['drift'][-1]:.3f}", values["drift"][-1] <= LARGE_DRIFT
    if "images_per_s" in values:
        yield "images per second", short(median(values["images_per_s"])), None
    if "seconds" in values:
        yield "time", str(timedelta(seconds=int(training_seconds(values["seconds"])))), None


def picture_path(folder: Path, step: int) -> Path:
    return folder / "pictures" / f"clusters-{step:08d}.jpg"


def picture_steps(folder: Path) -> list[int]:
    """The steps of a run's pictures of clusters, in order."""
    paths = (folder / "pictures").glob("clusters-[0-9]*.jpg")
    return sorted(int(path.stem.removeprefix("clusters-")) for path in paths)


def cluster_pictures(run: Run, most: int) -> list[dict[str, Any]]:
    """At most so many of a run's pictures, evenly spaced, with the first and the last."""
    steps, pictures = picture_steps(run.folder), []
    indices = np.linspace(0, len(steps) - 1, min(max(2, most), len(steps))).round().astype(int)
    for step in (steps[index] for index in indices):
        with Image.open(picture_path(run.folder, step)) as picture:
            about = json.loads(picture.info.get("comment") or "null")
            url = to_data_url(picture)
            pictures.append({"step": step, "src": url, "size": picture.size, "about": about})
    return pictures


def to_data_url(picture: Image.Image) -> str:
    """As a JPEG no wider than a page."""
    small = picture.convert("RGB")
    small.thumbnail((WIDTH_PX, small.height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=78, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def find_scores(runs: Sequence[Run], files: Sequence[Path]) -> list[dict[str, Any]]:
    """Lines of results.jsonl, in the run folders and in `files`, with some keys for the page; of a
    repeated evaluation, the last line counts."""
    scores: dict[str, dict[str, Any]] = {}
    by_run = [(run.folder / name, index) for index, run in enumerate(runs) for name in SCORES]
    for path, index in by_run + [(path, None) for path in files]:
        lines = read_lines(path) if path.is_file() else []
        if index is None and not (lines and all("scores" in line for line in lines)):
            raise UserError(f"--scores {path} was not written by croc evaluate")
        for line in lines:
            fields = ("protocol", "data", "weights_hash", "config", "hold_out", "weights")
            identity = json.dumps([line.get(name) for name in fields], sort_keys=True)
            weights, hold_out = line.get("weights", ""), line.get("hold_out")
            source = None
            if line.get("picture") and (path.parent / line["picture"]).is_file():
                with Image.open(path.parent / line["picture"]) as picture:
                    source = to_data_url(picture)
            main = next(iter(line["scores"].values()))
            scores[identity] = line | {
                "run": _find_run(weights, runs, index),
                "data": line["data"] + (f" (held out {100 * hold_out:g}%)" if hold_out else ""),
                "label": line.get("backbone") or weights,
                "untrained": weights.startswith("random:"),
                "main": main if is_number(main) else 0.0,
                "classes": line.get("classes") or {},
                "source": source,
            }
    return list(scores.values())


def _find_run(weights: str, runs: Sequence[Run], default: int | None) -> int | None:
    """The index of the run that the evaluated path belongs to."""
    path = Path(weights.removeprefix("random:")).resolve()
    matches = (n for n, run in enumerate(runs) if path.is_relative_to(run.folder.resolve()))
    return next(matches, default)


def score_cards(scores: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One card per protocol and dataset, best score first."""
    cards: dict[tuple[str, str], dict[str, Any]] = {}
    for score in sorted(scores, key=lambda score: -score["main"]):
        names = {name: score[name] for name in ("protocol", "data")}
        card = cards.setdefault(tuple(names.values()), names | {"scores": [], "classes": {}})
        card["scores"].append(score)
        card["classes"] |= dict.fromkeys(score["classes"])
    return list(cards.values())


def _options(runs: Sequence[Run]) -> dict[str, Any]:
    """The options that differ between the runs, and the others by section."""
    differing, shared = {}, {}
    for name in dict.fromkeys(name for run in runs for name in run.options):
        values = [run.options.get(name, "") for run in runs]
        dumped = [json.dumps(value, ensure_ascii=False) for value in values]
        texts = [v if isinstance(v, str) else text for v, text in zip(values, dumped)]
        if len(set(dumped)) > 1:
            differing[name] = texts
        else:
            section, _, last = name.partition(".")
            shared.setdefault(section, {})[last] = texts[0]
    return {"differing": differing, "shared": shared}


def _color(run: int | None) -> str:
    """The CSS classes of a run's color; after eight runs the colors repeat, with dashed lines. What
    belongs to no run is gray."""
    if run is None:
        return "run-none"
    return f"run-{run % COLORS}" + (" dashed" if run >= COLORS else "")


def brief(score: Any) -> str:
    """A score of a protocol: a number, or a text, or numbers by learning rate."""
    if isinstance(score, dict):
        return " ".join(f"{name}: {brief(value)}" for name, value in score.items())
    if isinstance(score, float):
        return f"{score:.1f}" if is_number(score) else "–"
    return "–" if score is None else str(score)


def short(value: float) -> str:
    """1,234,567 and 0.001234: four digits or all whole ones."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
