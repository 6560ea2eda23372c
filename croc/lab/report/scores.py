"""Evaluations on the page: a card for each protocol on each data set."""

from collections.abc import Sequence
from typing import Any

from croc.lab.report.evaluations import Score
from croc.lab.report.html import bar, swatch
from croc.lab.report.pictures import UNREADABLE, reduced
from croc.lab.report.reading import number_in
from croc.lab.web.page import text

PICTURES_BYTES = 1_500_000
BARS = 3000
"""On the whole page: some hundred bytes each."""


def scores_section(scores: Sequence[Score]) -> tuple[str, list[str]]:
    """The cards, and what had to be left out."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.protocol, score.data), []).append(score)
    page = _Page()
    cards = "".join(page.card(*names, group) for names, group in groups.items())
    return f'<div class="cards scores">\n{cards}</div>\n', page.notes


class _Page:
    """Keeps account of what the page can still hold."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._bytes, self._bars = PICTURES_BYTES, BARS

    def card(self, protocol: str, data: str, group: list[Score]) -> str:
        group = sorted(group, key=lambda score: -(score.main[1] or 0.0))
        best = max((score.main[1] or 0.0 for score in group), default=0.0)
        rows = "".join(_row(score, best) for score in group)
        return (
            f'<article class="card">\n<h3>{text(protocol)} · {text(data)}</h3>\n'
            f'<table class="bars"><caption class="visually-hidden">{text(protocol)} on {text(data)}'
            f"</caption>\n<tbody>{rows}</tbody></table>\n"
            f"{self._classes(group)}{self._predictions(group)}</article>\n"
        )

    def _classes(self, group: list[Score]) -> str:
        names = list(dict.fromkeys(name for score in group for name in score.classes))
        if not names:
            return ""
        self._bars -= len(names) * len(group)
        if self._bars < 0:
            self.notes.append(f"{group[0].protocol}, {group[0].data}: too many classes to show")
            return ""
        rows = "".join(_class_rows(name, group) for name in names)
        return (
            f"<details><summary>{len(names)} classes</summary>\n{_legend(group)}"
            f'<table class="bars classes"><tbody>{rows}</tbody></table></details>\n'
        )

    def _predictions(self, group: list[Score]) -> str:
        figures = "".join(self._figure(score) for score in group if score.picture)
        if not figures:
            return ""
        return f'<details class="predictions"><summary>Predictions</summary>\n{figures}</details>\n'

    def _figure(self, score: Score) -> str:
        assert score.picture is not None
        try:
            source = reduced(score.picture)
        except UNREADABLE:
            self.notes.append(f"the picture {score.picture.name} cannot be read, and is left out")
            return ""
        self._bytes -= len(source)
        if self._bytes < 0:
            self.notes.append(f"{score.picture.name} is left out: the page would grow too large")
            return ""
        said = f"Predictions of {score.label}: {score.protocol} on {score.data}"
        return (
            f'<figure><img src="{source}" alt="{text(said)}" loading="lazy">'
            f"<figcaption>{swatch(score.run)}{text(score.label)}</figcaption></figure>\n"
        )


def _row(score: Score, best: float) -> str:
    name, value = score.main
    others = ", ".join(f"{key} {said(score.scores[key])}" for key in list(score.scores)[1:])
    shown = said(score.scores[name])
    number = f"<strong>{text(shown)}</strong>" if value == best else text(shown)
    return (
        f'<tr><th scope="row">{_name(score)}'
        f'<span class="soft small below">{text(others)}</span></th>'
        f'<td class="wide-bar">{bar((value or 0.0) / 100, score.run, score.untrained)}</td>'
        f'<td class="number">{text(name)} {number}</td></tr>\n'
    )


def _name(score: Score) -> str:
    untrained = ' <span class="soft small">untrained</span>' if score.untrained else ""
    return f"{swatch(score.run, score.untrained)}{text(score.label)}{untrained}"


def _legend(group: list[Score]) -> str:
    each = "".join(f"<li>{_name(score)}</li>" for score in group)
    return f'<ul class="legend">{each}</ul>\n'


def _class_rows(name: str, group: list[Score]) -> str:
    bars = "".join(
        f'<span class="pair">{bar((value or 0.0) / 100, score.run, score.untrained)}'
        f'<span class="number">{"–" if value is None else f"{value:.1f}"}'
        f'<span class="visually-hidden"> {text(score.label)}</span></span></span>'
        for score in group
        for value in [score.classes.get(name)]
    )
    return f'<tr><th scope="row">{text(name)}</th><td class="wide-bar">{bars}</td></tr>\n'


def said(value: Any) -> str:
    """A score, however it is nested, in few digits."""
    if isinstance(value, list | tuple):
        return " ".join(map(said, value[:12]))
    if isinstance(value, dict):
        return " ".join(f"{name}: {said(each)}" for name, each in list(value.items())[:12])
    number = number_in(value)
    if value is None or (number is None and isinstance(value, float)):
        return "–"
    return f"{number:.1f}" if isinstance(value, float) and number is not None else str(value)[:80]
