"""Tables, on the terminal and in Markdown."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~&$#!"})
_FOLDED_WIDTH = 14
_BORDER_WIDTH = 3


def one_line(text: str) -> str:
    """Line breaks and unprintable characters become single spaces."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def plain_markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1
) -> str:
    """A Markdown table; columns after the first `text_columns` are right-aligned.

    Cells are used as they are: escape plain text with `plain_markdown`.
    """
    rule = ["---" if place < text_columns else "---:" for place in range(len(headings))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, rule, *rows))


def table_console() -> "Console":
    """A console that takes text literally; a file or pipe has no line width."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    return console


def terminal_table(
    headings: Sequence[str],
    rows: "Iterable[Sequence[str | Text]]",
    text_columns: int = 1,
    **options: Any,
) -> "Table":
    """A rich table: the first `text_columns` columns may fold, the rest are right-aligned and never
    broken. `options` are rich's own (title, box)."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(each) if isinstance(each, str) else each for each in row] for row in rows]
    table = Table(title_justify="left", **options)
    for place, heading in enumerate(headings):
        longest = max(map(cell_len, [*heading.split("\n"), *(row[place].plain for row in cells)]))
        style: Any = {"overflow": "fold", "min_width": min(_FOLDED_WIDTH, longest)}
        if place >= text_columns:
            style = {"justify": "right", "no_wrap": True, "min_width": longest}
        table.add_column(Text(heading, justify=style.get("justify")), **style)
    for row in cells:
        table.add_row(*row)
    return table


def least_width(table: "Table") -> int:
    """Of a `terminal_table`, with its text columns folded."""
    return sum((column.min_width or 0) + _BORDER_WIDTH for column in table.columns) + 1
