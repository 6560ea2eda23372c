"""The first thing on the page: each run's state in a few figures, and whether it is in health."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median

from croc.lab.report.curves import references
from croc.lab.report.html import short, swatch
from croc.lab.report.reading import Run
from croc.lab.web.page import text
from croc.train.health import too_soft

TAIL = 10
"""The last tenth of the lines stands for a run's end."""
WORD = {True: "as it should be", False: "look at this"}


def summary(runs: Sequence[Run]) -> str:
    """A card a run."""
    cards = "".join(_card(run, number) for number, run in enumerate(runs))
    return f'<div class="cards summary">\n{cards}</div>\n'


def progress(run: Run) -> str:
    last = last_step(run)
    return f"step {run.step:,}" + (f" of {last:,}" if last and last >= run.step else "")


def last_step(run: Run) -> int | None:
    epochs, per_epoch = run.whole_option("optim.epochs"), run.steps_per_epoch
    whole = epochs * per_epoch if epochs and per_epoch else None
    stop = run.whole_option("run.stop_after_steps")
    return min(filter(None, (whole, stop)), default=None)


def _card(run: Run, number: int) -> str:
    facts = "".join(
        f'<div><dt>{text(name)}</dt><dd class="{_kind(fine)}">{text(value)}{_said(fine)}</dd></div>'
        for name, value, fine in _facts(run)
    )
    return (
        f'<article class="card">\n<h3 class="run-name">{swatch(number)}{text(run.name)}</h3>\n'
        f'<p class="soft small">{text(run.recipe)} · {text(run.method)} · {progress(run)}</p>\n'
        f'<dl class="facts">{facts}</dl>\n</article>\n'
    )


def _kind(fine: bool | None) -> str:
    return "" if fine is None else "fine" if fine else "unwell"


def _said(fine: bool | None) -> str:
    """The mark is a picture of the word; colour alone would not reach everyone."""
    if fine is None:
        return ""
    return f' <span class="mark" role="img" aria-label="{WORD[fine]}">{"✓" if fine else "!"}</span>'


def _facts(run: Run) -> Iterator[tuple[str, str, bool | None]]:
    ends = {name: _end(series.values) for name, series in run.metrics.items()}
    if "loss" in ends:
        yield "loss", f"{short(run.metrics['loss'].values[0])} → {short(ends['loss'])}", None
    held = references(run)
    for kind in ("image", "cluster"):
        name = f"entropy_{kind}"
        if name in ends and name in held and held[name]["value"] > 0:
            share = ends[name] / held[name]["value"]
            yield f"entropy, {kind}s", f"{share:.0%} of log P", 0.05 <= share <= 0.95
    if "k_mean" in ends:
        yield "mean K", f"{ends['k_mean']:.1f}", None
    if "effective_clusters" in ends and "k_mean" in ends:
        clusters = f"{ends['effective_clusters']:.1f} of {ends['k_mean']:.1f}"
        yield "clusters per token", clusters, not too_soft(ends)
    if "valid_share" in ends:
        yield "valid share", f"{ends['valid_share']:.0%}", ends["valid_share"] > 0.5
    if "images_per_s" in run.metrics:
        yield "images a second", short(median(run.metrics["images_per_s"].values)), None
    if "seconds" in run.metrics:
        yield "time", duration(_in_all(run.metrics["seconds"].values)), None


def _end(values: list[float]) -> float:
    return fmean(values[-max(1, len(values) // TAIL) :])


def _in_all(seconds: list[float]) -> float:
    """Each start of a run counts from 0: the last of every stretch adds up."""
    ends = [each for each, after in pairwise(seconds) if after < each]
    return sum(ends) + seconds[-1]


def duration(seconds: float) -> str:
    """In the two units that matter."""
    minutes, rest = divmod(max(0, math.floor(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
