"""A table's marks and means, and how it is written: for people, LaTeX, browsers and terminals."""

import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from croc.eval import evaluate
from croc.eval.table.layout import (
    Cell,
    Column,
    Row,
    Table,
    make_cells,
    make_columns,
    with_marks,
)
from croc.eval.table.page import to_html
from croc.eval.table.screen import print_table
from croc.eval.table.text_formats import to_latex, to_markdown
from tests.evals.commands import segmentation_tree
from tests.evals.test_table import make_one

TINY = "random:vit_tiny_patch16_224"
OTHER = "random:resnet10t"
HOSTILE = (
    r"""</td><script>alert("1")</script>&amp; | **x** `y` [red]a[/] \end{tabular}\\ %$#_{}~^ ±"""
)


def small_table(*values: tuple[float | None, ...], labels: Sequence[str] = "abcdef") -> Table:
    columns = [Column("linear", f"d{n}", "mIoU", f"D{n}") for n in range(len(values[0]))]
    rows = [Row(name, {}, tuple(map(Cell, row))) for name, row in zip(labels, values)]
    return with_marks(Table(tuple(columns), tuple(rows)))


def test_marks_go_by_all_digits_and_ties_share_them():
    table = small_table((1.04, 5.0, 3.0), (1.01, 5.0, None), (1.0, 4.0, None), (0.5, 4.0, None))
    columns = list(zip(*([cell.mark for cell in row.cells] for row in table.rows)))
    assert columns == [
        ("best", "second", None, None),
        ("best", "best", "second", "second"),
        (None, None, None, None),
    ]
    assert "| a | **1.0** | **5.0** | 3.0 |" in to_markdown(table)
    assert "| b | <ins>1.0</ins> | **5.0** | – |" in to_markdown(table)
    assert r"a & \textbf{1.0} & \textbf{5.0} & 3.0 \\" in to_latex(table)
    assert r"b & \underline{1.0} & \textbf{5.0} & -- \\" in to_latex(table)
    assert "<strong>1.0</strong>" in to_html(table)
    assert "<u>1.0</u>" in to_html(table)


def test_the_mean_needs_all_of_its_data_sets():
    wanted = [("linear", "voc12:x"), ("linear", "scenes"), ("video", "scenes")]
    columns = make_columns(wanted, average=True)
    titles = ["VOC12", "Scenes", "Avg.", "Scenes J&F", "Scenes J", "Scenes F"]
    assert [column.title for column in columns] == titles
    assert len(make_columns(wanted, average=False)) == 5
    scores: dict[tuple[str, str], Any] = {wanted[0]: {"mIoU": 1.0}, wanted[1]: {"mIoU": 4.0}}
    assert [cell.value for cell in make_cells(columns, scores)] == [1, 4, 2.5, None, None, None]
    del scores[wanted[1]]
    assert make_cells(columns, scores)[2].value is None


def test_kmeans_has_columns_with_one_and_with_four_blocks(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def count_blocks(job: evaluate.Job) -> evaluate.Found:
        return evaluate.Found({"mIoU": float(job.request.config.blocks)}, {}, None)

    monkeypatch.setitem(evaluate.RUNNERS, "kmeans", count_blocks)
    data, kmeans = ["scenes:4", segmentation_tree(tmp_path / "tree")], ("--protocols", "kmeans")
    one = {"Scenes": 1.0, "tree": 1.0, "Avg.": 1.0}
    for more, expected in (
        ((), {"K-means (mIoU)": one, "K-means, 4 blocks (mIoU)": {"tree": 4.0}}),
        (("--kmeans.blocks", "1"), {"K-means (mIoU)": one}),
    ):
        assert make_one(tmp_path / "out", [TINY], *kmeans, *more, data=data) == 0
        page = json.loads((tmp_path / "out/table.json").read_text())
        found: dict[str, dict[str, float]] = {}
        for column, cell in zip(page["columns"], page["rows"][0]["cells"]):
            found.setdefault(column["group"], {})[column["title"]] = cell["value"]
        assert found == expected
    capsys.readouterr()
    assert make_one(tmp_path / "out", [str(run)], *kmeans, data=data) == 2
    assert "kmeans (4 blocks) on folder:" in (message := capsys.readouterr().err)
    assert "has 2 blocks, not 4" in message


class Reader(HTMLParser):
    """The texts of a page's cells; every tag must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_labels_stay_text():
    table = small_table((1.0,), (2.0,), labels=[HOSTILE, "[0pt] *"])
    table = Table(table.columns, table.rows, notes=(HOSTILE,))
    reader = Reader()
    reader.feed(to_html(table))
    assert not reader.open
    assert "script" not in reader.tags
    assert reader.tags.count("td") == 2
    assert reader.text.count(HOSTILE) == 2

    line = to_markdown(table).splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    cell = line.removeprefix("| ").split(" | ")[0]
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell) == HOSTILE
    assert not re.search(r"(?<!\\)[<`*\[_]", cell)

    latex = to_latex(table)
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    row = next(line for line in latex.splitlines() if "script" in line and "caption" not in line)
    assert row.startswith(r"\textless{}/td\textgreater{}\textless{}script")
    assert r"\textbackslash{}end\{tabular\}\textbackslash{}\textbackslash{}" in row
    assert r"\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}" in row
    assert "\n{[}0pt{]} {*} & " in latex

    stream = io.StringIO()
    print_table(table, Console(file=stream, width=200, markup=False))
    assert HOSTILE in stream.getvalue()


@pytest.mark.parametrize("columns", [2, 9])
def test_latex_is_balanced(columns: int):
    latex = to_latex(small_table(*[tuple(map(float, range(columns)))] * 2, labels=[HOSTILE, "b"]))
    depth = 0
    for sign in re.sub(r"\\[{}%]", "", re.sub(r"(?m)^% .*$", "", latex)).replace("{%", "{"):
        assert sign != "%"
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    begun = re.findall(r"\\begin\{(\w+)\}", latex)
    assert begun == re.findall(r"\\end\{(\w+)\}", latex)[::-1] == ["table", "tabular"]
    for line in latex.splitlines():
        if line.endswith(r" \\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) == columns


def test_a_narrow_terminal_shows_a_grid_a_protocol():
    wanted = [(protocol, f"folder:set{n}") for protocol in ("linear", "kmeans") for n in range(3)]
    columns = make_columns(wanted, average=True)
    cells = tuple(Cell(12.34, 0.56) for _ in columns)
    table = with_marks(Table(columns, (Row("one", {}, cells), Row("two", {}, cells))))
    for width, grids in ((80, 2), (200, 1)):
        stream = io.StringIO()
        print_table(table, Console(file=stream, width=width, force_terminal=True))
        text = stream.getvalue()
        assert text.count("two") == grids
        assert text.count("12.3") == 16
        assert max(map(len, re.sub(r"\x1b\[\d*m", "", text).splitlines())) <= width
