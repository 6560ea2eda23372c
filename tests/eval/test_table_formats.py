"""A table's marks and means, and its formats: Markdown and LaTeX."""

import json
import re
from collections.abc import Sequence
from typing import Any

from croc.eval import evaluate
from croc.eval.table_formats import (
    data_titles,
    fill_cells,
    layout,
    mark_best,
    to_latex,
    to_markdown,
)
from tests.eval.commands import segmentation_tree
from tests.eval.test_table import TINY, make_one

HOSTILE = (
    r"""</td><script>alert("1")</script>&amp; | **x** `y` [red]a[/] \end{tabular}\\ %$#_{}~^ ±"""
)


def small_table(*values: tuple[float | None, ...], labels: Sequence[str] = "abcdef") -> Any:
    columns = layout([("linear", f"folder:D{n}") for n in range(len(values[0]))], average=False)
    rows = []
    for label, row in zip(labels, values):
        cells = [{"value": value, "deviation": None, "best": False} for value in row]
        rows.append({"label": label, "cells": cells})
    mark_best([row["cells"] for row in rows])
    return {"columns": columns, "rows": rows, "notes": []}


def test_marks_use_all_digits_and_ties_share_them():
    record = small_table((1.04, 5.0, 3.0), (1.01, 5.0, None), (1.0, 4.0, None), (0.5, 4.0, None))
    best = list(zip(*([cell["best"] for cell in row["cells"]] for row in record["rows"])))
    assert best == [
        (True, False, False, False),
        (True, True, False, False),
        (False, False, False, False),
    ]
    assert to_markdown(record).splitlines()[:4] == [
        "| Weights | Linear (mIoU): D0 | Linear (mIoU): D1 | Linear (mIoU): D2 |",
        "| ------- | ----------------: | ----------------: | ----------------: |",
        "| a       |           **1.0** |           **5.0** |               3.0 |",
        "| b       |               1.0 |           **5.0** |                 – |",
    ]
    assert r"a & \textbf{1.0} & \textbf{5.0} & 3.0 \\" in to_latex(record)
    assert r"b & 1.0 & \textbf{5.0} & -- \\" in to_latex(record)


def test_a_mean_needs_all_of_its_data_sets():
    places = [("linear", "voc12:x"), ("linear", "scenes"), ("video", "scenes")]
    columns = layout(places, average=True)
    titles = ["VOC12", "Scenes", "Avg.", "Scenes J&F", "Scenes J", "Scenes F"]
    assert [column["title"] for column in columns] == titles
    assert len(layout(places, average=False)) == 5
    scores: dict[tuple[str, str], Any] = {places[0]: {"mIoU": 1.0}, places[1]: {"mIoU": 4.0}}
    values = [cell["value"] for cell in fill_cells(columns, scores)]
    assert values == [1, 4, 2.5, None, None, None]
    del scores[places[1]]
    assert fill_cells(columns, scores)[2]["value"] is None
    titles = data_titles(["folder:a/x", "folder:b/x", "voc12:a"])
    assert list(titles.values()) == ["folder:a/x", "folder:b/x", "VOC12"]


def test_kmeans_has_columns_with_one_and_with_four_blocks(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None, raising=False)
    data, kmeans = ["scenes:4", segmentation_tree(tmp_path / "tree")], ("--protocols", "kmeans")
    one = [("K-means (mIoU)", title) for title in ("Scenes", "tree", "Avg.")]
    four = [("K-means, 4 blocks (mIoU)", "tree")]
    for more, expected in (((), one + four), (("--kmeans.blocks", "1"), one)):
        small = ("--kmeans.pca", "2", *more)
        assert make_one(tmp_path / "out", [TINY], *kmeans, *small, data=data) == 0
        record = json.loads((tmp_path / "out/table.json").read_text())
        assert [(each["group"], each["title"]) for each in record["columns"]] == expected
    capsys.readouterr()
    assert make_one(tmp_path / "out", [str(run)], *kmeans, data=data) == 2
    assert "has 2 blocks, not 4" in capsys.readouterr().err


def test_hostile_labels_stay_text():
    record = small_table((1.0,), (2.0,), labels=[HOSTILE, "[0pt] *"]) | {"notes": [HOSTILE]}
    line = to_markdown(record).splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    cell = line.removeprefix("| ").split(" | ")[0]
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell) == HOSTILE
    assert not re.search(r"(?<!\\)[<`*\[_]", cell)

    latex = to_latex(record)
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    row = next(line for line in latex.splitlines() if "script" in line and "caption" not in line)
    assert row.startswith(r"\textless{}/td\textgreater{}\textless{}script")
    assert r"\textbackslash{}end\{tabular\}\textbackslash{}\textbackslash{}" in row
    assert r"\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}" in row
    assert "\n{[}0pt{]} {*} & " in latex

    assert HOSTILE in to_markdown(record, str)
