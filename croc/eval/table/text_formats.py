"""A table as Markdown and as LaTeX. Labels come from the command line and may hold anything."""

from itertools import accumulate, pairwise

from croc.eval.table.layout import LEGEND, MISSING, Cell, Table

_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>|~&$#!"})
# A bracket or star that begins a row would be an argument of the \\ before it.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "–": "--",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"{{{sign}}}" for sign in "[]*"},
    }
)
COLUMNS_OF_A_PAGE = 4


def to_markdown(table: Table) -> str:
    """One line of headings, since Markdown knows no more."""
    titles = [f"{column.group}: {column.title}" for column in table.columns]
    lines = [
        ["Weights", *table.known, *map(plain_markdown, titles)],
        ["---"] * (1 + len(table.known)) + ["---:"] * len(table.columns),
        *(
            [*map(plain_markdown, table.words(row)), *map(_markdown_cell, row.cells)]
            for row in table.rows
        ),
    ]
    notes = "".join(f"\n{plain_markdown(note)}\n" for note in (LEGEND, *table.notes))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def plain_markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def _markdown_cell(cell: Cell) -> str:
    # <ins> is what GitHub shows underlined; it drops <u>.
    number = {"best": f"**{cell.number}**", "second": f"<ins>{cell.number}</ins>"}
    text = number.get(cell.mark or "", cell.number)
    return text if cell.spread is None else f"{text} ± {cell.spread}"


def to_latex(table: Table) -> str:
    """A table for booktabs, as the paper's are."""
    words = 1 + len(table.known)
    ends = list(accumulate((span for _, span in table.groups), initial=words))
    groups = [rf"\multicolumn{{{span}}}{{c}}{{{_plain_latex(n)}}}" for n, span in table.groups]
    rules = [rf"\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends)]
    titles = ["Weights", *table.known, *(column.title for column in table.columns)]
    body = [
        _latex_line([*map(_plain_latex, table.words(row)), *map(_latex_cell, row.cells)])
        for row in table.rows
    ]
    wide = len(table.columns) > COLUMNS_OF_A_PAGE
    lines = [
        rf"% \usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}[ht]",
        r"\centering",
        rf"\caption{{{' '.join(_plain_latex(note) for note in (LEGEND, *table.notes))}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{'l' * words}{'r' * len(table.columns)}}}",
        r"\toprule",
        _latex_line([""] * words + groups),
        " ".join(rules),
        _latex_line([_plain_latex(title) for title in titles]),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(["}"] if wide else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _plain_latex(text: str) -> str:
    return text.translate(_LATEX)


def _latex_line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    number = "--" if cell.number == MISSING else cell.number
    marked = {"best": rf"\textbf{{{number}}}", "second": rf"\underline{{{number}}}"}
    text = marked.get(cell.mark or "", number)
    return text if cell.spread is None else rf"{text} $\pm$ {cell.spread}"
