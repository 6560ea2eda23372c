"""A table as data: which columns there are, what stands in them, which scores are the best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Mark = Literal["best", "second"]

GROUPS = {
    "linear": "Linear (mIoU)",
    "kmeans": "K-means (mIoU)",
    "kmeans (4 blocks)": "K-means, 4 blocks (mIoU)",
    "within": "Within images (mIoU)",
    "incontext": "In-context (mIoU)",
    "video": "Video",
}
METRICS = {"video": ("J&F", "J", "F")}
DATA_TITLES = {
    "voc12": "VOC12",
    "coco-things": "COCO-Things",
    "coco-stuff": "COCO-Stuff",
    "coco-stuff-panoptic": "COCO-Stuff (panoptic)",
    "ade20k": "ADE20K",
    "davis17": "DAVIS'17",
    "davis16": "DAVIS'16",
    "coco-things-mini": "COCO-Things mini",
    "idd-lite": "IDD-Lite",
    "scenes": "Scenes",
}
MISSING = "–"
LEGEND = "Scores in percent; the best in bold, the second best underlined."


@dataclass(frozen=True)
class Column:
    """One figure of a protocol on a data set; without a data set, the mean over several."""

    protocol: str
    data: str | None
    metric: str
    title: str

    @property
    def group(self) -> str:
        return GROUPS[self.protocol]


@dataclass(frozen=True)
class Cell:
    """A score as it was found; how many of its digits are shown is the formats' affair."""

    value: float | None = None
    deviation: float | None = None
    mark: Mark | None = None

    @property
    def number(self) -> str:
        return MISSING if self.value is None else f"{self.value:.1f}"

    @property
    def spread(self) -> str | None:
        """Over the seeds."""
        return None if self.deviation is None else f"{self.deviation:.1f}"


@dataclass(frozen=True)
class Row:
    """Weights: what they are called, what is known of them, and their scores."""

    label: str
    known: dict[str, str]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """What the formats write down."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """Which facts there are about any of the weights."""
        names = dict.fromkeys(name for row in self.rows for name in row.known)
        return tuple(name for name in names if any(row.known.get(name) for row in self.rows))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Titles over the columns, with how many each spans."""
        spans: dict[str, int] = {}
        for column in self.columns:
            spans[column.group] = spans.get(column.group, 0) + 1
        return list(spans.items())

    def of_group(self, group: str) -> "Table":
        """Only the columns under one of the titles."""
        places = [n for n, column in enumerate(self.columns) if column.group == group]
        rows = [replace(row, cells=tuple(row.cells[n] for n in places)) for row in self.rows]
        return replace(self, columns=tuple(self.columns[n] for n in places), rows=tuple(rows))

    def words(self, row: Row) -> list[str]:
        """A row's first cells: its label and the facts."""
        return [row.label, *(row.known.get(name) or MISSING for name in self.known)]


def make_columns(wanted: Sequence[tuple[str, str]], average: bool) -> tuple[Column, ...]:
    """A group a protocol, a data set beside the other; the mean if there are several."""
    titles = data_titles(dict.fromkeys(data for _, data in wanted))
    columns: list[Column] = []
    for protocol in GROUPS:
        sets = [data for name, data in wanted if name == protocol]
        metrics = METRICS.get(protocol, ("mIoU",))
        for data in sets:
            for metric in metrics:
                title = titles[data] if len(metrics) == 1 else f"{titles[data]} {metric}"
                columns.append(Column(protocol, data, metric, title))
        if average and len(sets) > 1:
            title = "Avg." if len(metrics) == 1 else f"Avg. {metrics[0]}"
            columns.append(Column(protocol, None, metrics[0], title))
    return tuple(columns)


def data_titles(specs: Iterable[str]) -> dict[str, str]:
    """As papers call them; where two would be called the same, as they were asked for."""
    titles = {}
    for spec in specs:
        kind, _, path = spec.partition(":")
        titles[spec] = DATA_TITLES.get(kind) or Path(path).expanduser().resolve().stem or spec
    called = list(titles.values())
    return {
        spec: one_line(title if called.count(title) == 1 else spec)
        for spec, title in titles.items()
    }


def one_line(text: str) -> str:
    """Line breaks and what no screen shows become blanks: no format could hold them."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def make_cells(
    columns: Sequence[Column], scores: dict[tuple[str, str], dict[str, Any]]
) -> tuple[Cell, ...]:
    """A row's cells from the scores of each (protocol, data set); the mean needs all of them."""
    cells = []
    for column in columns:
        if column.data is None:
            sets = [
                scores.get((each.protocol, each.data), {}).get(column.metric)
                for each in columns
                if each.protocol == column.protocol
                and each.metric == column.metric
                and each.data is not None
            ]
            values = [value for value in sets if value is not None]
            whole = len(values) == len(sets)
            cells.append(Cell(sum(values) / len(values) if whole else None))
        else:
            found = scores.get((column.protocol, column.data), {})
            cells.append(Cell(found.get(column.metric), found.get("deviation")))
    return tuple(cells)


def with_marks(table: Table) -> Table:
    """Mark each column's best and second best, by all digits; who ties shares the mark."""
    marked = list(zip(*(_mark(column) for column in zip(*(row.cells for row in table.rows)))))
    rows = [replace(row, cells=tuple(cells)) for row, cells in zip(table.rows, marked)]
    return replace(table, rows=tuple(rows))


def _mark(cells: Sequence[Cell]) -> list[Cell]:
    there = [cell.value for cell in cells if cell.value is not None]
    if len(there) < 2:  # the only one is no better than any other
        return list(cells)
    marks: dict[float | None, Mark] = dict(
        zip(sorted(set(there), reverse=True), ("best", "second"))
    )
    return [replace(cell, mark=marks.get(cell.value)) for cell in cells]
