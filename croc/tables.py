"""Tables in Markdown, aligned so that they can be read on a terminal, too."""

from collections.abc import Iterable, Sequence

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


def one_line(text: str) -> str:
    """Line breaks and unprintable characters become single spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def plain_markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are right-aligned.

    Cells are used as they are: escape plain text with `plain_markdown`.
    """
    lines = [list(headings), *map(list, rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)
