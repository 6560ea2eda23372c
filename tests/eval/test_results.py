"""results.jsonl: whole lines, no nan, keys that identify evaluations; the table on screen."""

from dataclasses import replace
from pathlib import Path

import pytest

from croc.errors import UserError
from croc.eval.results import Result, append_result, read_results

RESULT = Result(
    protocol="linear",
    data="voc12:/data",
    weights="runs/one",
    backbone="one@30",
    weights_hash="0123456789abcdef",
    scores={"mIoU": 54.94, "by seed": [1.0, 2.25]},
    classes={"sky": 12.345, "ship": None},
    config={"rates": (1e-3,), "seed": 0},
    count={"val": 3},
    machine={"device": "cpu"},
    seconds=1.5,
    picture=None,
)


def test_a_truncated_line_spoils_no_other(tmp_path: Path):
    append_result(tmp_path, RESULT)
    assert read_results(tmp_path)[0]["classes"] == RESULT.classes
    with pytest.raises(ValueError, match="not JSON compliant"):  # before anything is written
        append_result(tmp_path, replace(RESULT, scores={"mIoU": float("nan")}))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"protocol": "lin')
    append_result(tmp_path, RESULT)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 3
    with pytest.raises(UserError, match="line 2, is cut off: remove it"):
        read_results(tmp_path)
    (tmp_path / "results.jsonl").write_text(lines[0] + "\n" + lines[2] + "\n")
    assert len(read_results(tmp_path)) == 2


def test_keys_identify_evaluations():
    assert RESULT.key == "5ab94a30"  # pictures of earlier versions have it in their names
    same = replace(RESULT, seconds=9.0, machine={"device": "H200"}, weights="elsewhere")
    assert same.key == RESULT.key
    changes = (
        {"protocol": "kmeans"},
        {"data": "voc12:/other"},
        {"weights_hash": "f" * 16},
        {"config": {"rates": (1e-3,), "seed": 1}},
        {"hold_out": 0.25},
    )
    keys = {replace(RESULT, **change).key for change in changes}  # pyright: ignore
    assert len(keys | {RESULT.key}) == 6
