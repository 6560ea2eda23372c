"""A table on the terminal."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from croc.eval.table.layout import LEGEND, Cell, Table

STYLES = {"best": "bold", "second": "underline"}
FOLDED_WIDTH = 14
BORDERS = 3
ENDLESS = 10_000


def print_table(table: Table, console: Console | None = None) -> None:
    """One grid if there is room, else one a protocol, else without what is known of the weights.

    In a file, which has no edge, it is one grid.
    """
    console = console or Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = ENDLESS
    parts = [table.of_group(group) for group, _ in table.groups]
    layouts = ([_grid(table)], [*map(_grid, parts)], [_grid(each, ()) for each in parts])
    needed = [max(map(_least_width, grids)) for grids in layouts]
    fitting = [grids for grids, width in zip(layouts, needed) if width <= console.width]
    console.width = max(console.width, needed[-1])  # the terminal breaks lines; no score is lost
    for grid in (fitting or layouts[-1:])[0]:
        console.print(grid)
    for note in (*[LEGEND] * console.is_terminal, *table.notes):  # marks need a terminal
        console.print(note, soft_wrap=True)


def _grid(table: Table, known: Sequence[str] | None = None) -> Grid:
    """Words may be folded, scores never."""
    known = table.known if known is None else known
    words = [table.words(row)[: 1 + len(known)] for row in table.rows]
    grid = Grid()
    for name, below in zip(("Weights", *known), zip(*words)):
        width = min(FOLDED_WIDTH, _longest([name, *below]))
        grid.add_column(name, overflow="fold", min_width=width)
    for place, column in enumerate(table.columns):
        # A metric goes below its data set, so that columns stay narrow.
        data = column.title.removesuffix(f" {column.metric}")
        titles = [column.group, data, *[column.metric] * (column.title != data)]
        texts = [_text(row.cells[place]) for row in table.rows]
        grid.add_column(
            Text("\n".join(titles), justify="right"),
            justify="right",
            no_wrap=True,
            min_width=_longest([*titles, *(text.plain for text in texts)]),
        )
    for row, known_words in zip(table.rows, words):
        grid.add_row(*map(Text, known_words), *map(_text, row.cells))
    return grid


def _least_width(grid: Grid) -> int:
    return sum((column.min_width or 0) + BORDERS for column in grid.columns) + 1


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts))


def _text(cell: Cell) -> Text:
    spread = "" if cell.spread is None else f" ± {cell.spread}"
    return Text.assemble((cell.number, STYLES.get(cell.mark or "", "")), spread)
