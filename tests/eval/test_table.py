"""Tables: each cell is computed once, a failing one costs no other; formats; curves."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

from croc.cli import main
from croc.config import write_config
from croc.errors import UserError
from croc.eval import evaluate, table
from croc.eval.curve import points_of
from croc.eval.evaluate import identify_data, identify_network
from croc.eval.protocols import DEFAULTS, Request, linear_protocol, read_options
from croc.eval.table_formats import fill_cells, layout, mark_best, to_latex, to_markdown
from croc.results import Result, append_result, key_of, read_results
from croc.train.loop import pretrain
from croc.weights.backbones import fingerprint
from croc.weights.open import open_backbone
from tests.eval import commands
from tests.eval.commands import call, segmentation_tree
from tests.eval.trees import HEIGHT, WIDTH
from tests.tiny import tiny_config, tiny_dino

TINY = "random:vit_tiny_patch16_224"
OTHER = "random:resnet10t"
SMALL = (*commands.SMALL["linear"], *commands.SMALL["kmeans"])
LINEAR = ("--protocols", "linear")


def make_one(to: Path, weights: Sequence[str], *more: str, data: Sequence[str] = ()) -> Any:
    """`croc evaluate table` with small settings; its exit code."""
    chosen = () if "--protocols" in more else ("--protocols", "linear", "kmeans")
    options = ("--data", *(data or ("scenes:4",)), "--to", str(to), "--workers", "0")
    try:
        return main(["evaluate", "table", "--weights", *weights, *options, *chosen, *SMALL, *more])
    except SystemExit as end:
        return end.code


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The weights and protocol of every cell that is really computed; pictures are not drawn."""
    calls: list[tuple[str, str]] = []
    real = evaluate.run_protocol

    def counting(request: Any, weights: Any, *rest: Any) -> Any:
        result = real(request, weights, *rest)
        calls.append((weights.spec, request.protocol))
        return result

    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None)
    monkeypatch.setattr(evaluate, "run_protocol", counting)
    return calls


def fail(monkeypatch: pytest.MonkeyPatch, spec: str, protocol: str, error: BaseException) -> None:
    real = evaluate.run_protocol

    def failing(request: Any, weights: Any, *rest: Any) -> Any:
        if (weights.spec, request.protocol) == (spec, protocol):
            raise error
        return real(request, weights, *rest)

    monkeypatch.setattr(evaluate, "run_protocol", failing)


def test_three_weights_by_one_command(run, tmp_path, computed, capsys):
    weights = [f"CrOC={run}", f"untrained=random:{run}", TINY]
    assert call("linear", run, "scenes:4", tmp_path) == 0
    assert make_one(tmp_path, weights) == 0
    output = capsys.readouterr()
    assert "6 cells, 1 already finished" in output.err  # by `croc evaluate linear`
    record = json.loads((tmp_path / "table.json").read_text())
    rows = record["rows"]
    assert [row["label"] for row in rows] == ["CrOC", "untrained", TINY]
    scores = [cell["value"] for row in rows for cell in row["cells"]]
    assert scores == [line["scores"]["mIoU"] for line in read_results(tmp_path)]
    for name in ("table.md", "table.tex"):
        assert all(f"{value:.1f}" in (tmp_path / name).read_text() for value in scores)

    first = {path.name: path.read_bytes() for path in tmp_path.glob("table.*")}
    assert len(computed) == 6
    assert make_one(tmp_path, weights) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*able.*")} == first
    assert make_one(tmp_path, [weights[2], f"again={run}", f"and again={run}"]) == 0
    assert len(computed) == 6
    assert make_one(tmp_path, weights, "--linear.seed", "1") == 0
    assert [protocol for _, protocol in computed[6:]] == ["linear"] * 3


def test_precision_and_hold_out_are_part_of_the_key():
    line = {"protocol": "linear", "config": {"a": 1}, "data_hash": "d", "weights_hash": "w"}
    line |= {"network_hash": "n", "machine": {"precision": "float32"}}
    keys = {key_of(cell) for cell in (line, {**line, "hold_out": 0.0})}
    assert len(keys) == 1  # lines from before there was a hold-out still count
    keys.add(key_of({**line, "hold_out": 0.25}))
    keys.add(key_of({**line, "machine": {"precision": "bfloat16"}}))
    assert len(keys) == 3
    older, newer = {"reading": "tokens", "best": 5}, {"on": "tokens", "top_k": 5}
    assert key_of(line | {"config": older}) == key_of(line | {"config": newer})


def test_resumes_after_an_interrupt(tmp_path, computed, monkeypatch):
    weights = [TINY, OTHER]
    with monkeypatch.context() as patch:
        fail(patch, TINY, "kmeans", KeyboardInterrupt())
        assert make_one(tmp_path, weights) == 130
    assert not list(tmp_path.glob("table.*"))
    assert len(read_results(tmp_path)) == 1
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('[1]\n{"protocol": "linear", "sco')
    assert make_one(tmp_path, weights) == 0
    assert computed == [(spec, name) for spec in weights for name in ("linear", "kmeans")]


def test_changed_weights_and_data_are_computed_again(tmp_path, computed):
    state = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
    torch.save(state, tmp_path / "w.pth")
    weights = [f"file=timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}"]
    data = [segmentation_tree(tmp_path / "tree")]
    assert make_one(tmp_path / "out", weights, *LINEAR, data=data) == 0
    shutil.copytree(tmp_path / "tree", tmp_path / "copy")
    moved = [f"folder:{tmp_path / 'copy'}"]
    assert make_one(tmp_path / "out", weights, *LINEAR, data=moved) == 0
    assert len(computed) == 1
    torch.save(state | {"cls_token": state["cls_token"] + 1}, tmp_path / "w.pth")
    assert make_one(tmp_path / "out", weights, *LINEAR, data=data) == 0
    assert len(computed) == 2
    Image.new("L", (WIDTH, HEIGHT), 1).save(tmp_path / "tree/labels/val/0.png")
    assert make_one(tmp_path / "out", weights, *LINEAR, data=data) == 0
    assert len(computed) == 3


def test_a_failing_cell_costs_no_other(tmp_path, computed, monkeypatch, capsys):
    weights = [f"A={TINY}", f"B={OTHER}"]
    with monkeypatch.context() as patch:
        error = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        fail(patch, TINY, "linear", error)
        assert make_one(tmp_path, weights) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("croc: 1 failed, the same command runs only these again")
    assert "A, linear on scenes:4 (OutOfMemoryError: CUDA out of memory. Tried" in last
    assert re.search(r"^\| A +\| +– \|", (tmp_path / "table.md").read_text(), re.MULTILINE)
    record = json.loads((tmp_path / "table.json").read_text())
    assert [(cell["label"], cell["protocol"]) for cell in record["failed"]] == [("A", "linear")]
    assert len(computed) == 3
    assert make_one(tmp_path, weights) == 0
    assert computed[3:] == [(TINY, "linear")]


def test_each_data_set_has_its_own_defaults():
    data = ("--data", "voc12:x", "scenes", "davis17:y")
    more = ("--linear.steps", "7", "--kmeans.image_px=64")
    arguments = ["--weights", "a", *data, *more]
    _, columns = read_options(arguments, table.TableOptions, "croc evaluate table")
    assert len(columns) == 4 + 5 + 1
    by_place = {(column.protocol, column.data): column for column in columns}
    voc, scenes = (by_place["linear", spec].config for spec in ("voc12:x", "scenes"))
    assert (voc.steps, voc.epochs, voc.image_px, voc.blocks) == (7, None, 448, 4)
    assert (scenes.steps, scenes.image_px, scenes.lrs) == (7, 96, linear_protocol("scenes").lrs)
    assert by_place["video", "davis17:y"].config.short_px == 480


def test_the_same_weights_in_another_network_have_another_hash():
    backbone, same = open_backbone(TINY), open_backbone("random:deit_tiny_patch16_224")
    weights, network = fingerprint(backbone), identify_network(backbone)
    assert (fingerprint(same), identify_network(same)) == (weights, network)
    same.vit.blocks[0].mlp.act = torch.nn.ReLU()
    assert fingerprint(same) == weights
    assert identify_network(same) != network
    backbone.vit.blocks[0].attn.num_heads = 6
    assert identify_network(backbone) != network


def test_data_are_identified_by_their_content(tmp_path: Path):
    data = segmentation_tree(tmp_path / "tree")
    before = identify_data(data)
    (tmp_path / "tree" / "out").mkdir()
    (tmp_path / "tree" / "out" / "table.md").write_text("mine")
    assert identify_data(data, tmp_path / "tree" / "out") == before
    assert identify_data(data) != before
    with pytest.raises(UserError, match="is the folder of the data: choose another"):
        identify_data(data, tmp_path / "tree")
    archive = shutil.make_archive(str(tmp_path / "packed"), "tar", tmp_path / "tree")
    assert identify_data(f"folder:{archive}") not in (before, identify_data(f"voc12:{archive}"))
    assert len({identify_data(spec) for spec in ("scenes", "scenes:4", "scenes:64")}) == 3


HOSTILE = (
    r"""</td><script>alert("1")</script>&amp; | **x** `y` [red]a[/] \end{tabular}\\ %$#_{}~^ ±"""
)


def requests(*places: tuple[str, str]) -> list[Request]:
    return [Request(name, data, DEFAULTS[name]("scenes")) for name, data in places]


def small_table(*values: tuple[float | None, ...], labels: Sequence[str] = "abcdef") -> Any:
    columns = layout(requests(*(("linear", f"folder:D{n}") for n in range(len(values[0])))))
    columns = [column for column in columns if column["data"]]
    rows = []
    for label, row in zip(labels, values):
        cells = fill_cells(
            columns, {("linear", f"folder:D{n}"): {"mIoU": x} for n, x in enumerate(row)}
        )
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
    a, b = to_markdown(record).splitlines()[2:4]
    assert a.split() == ["|", "a", "|", "**1.0**", "|", "**5.0**", "|", "3.0", "|"]
    assert b.split() == ["|", "b", "|", "1.0", "|", "**5.0**", "|", "–", "|"]
    assert r"b & 1.0 & \textbf{5.0} & -- \\" in to_latex(record)


def test_a_mean_needs_all_of_its_data_sets():
    places = [("linear", "voc12:x"), ("linear", "scenes"), ("video", "scenes")]
    columns = layout(requests(*places))
    titles = ["VOC12", "Scenes", "Avg.", "Scenes J&F", "Scenes J", "Scenes F"]
    assert [column["title"] for column in columns] == titles
    scores: dict[tuple[str, str], Any] = {places[0]: {"mIoU": 1.0}, places[1]: {"mIoU": 4.0}}
    values = [cell["value"] for cell in fill_cells(columns, scores)]
    assert values == [1, 4, 2.5, None, None, None]
    del scores[places[1]]
    assert fill_cells(columns, scores)[2]["value"] is None


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
    assert r"\textbackslash{}end\{tabular\}\textbackslash{}\textbackslash{}" in row
    assert r"\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}" in row
    assert "\n{[}0pt{]} {*} & " in latex


RESULT = Result(
    *("linear", "voc12:/data", "runs/one", "one@30", "0123456789abcdef"),
    scores={"mIoU": 54.94, "by seed": [1.0, 2.25]},
    classes={"sky": 12.345, "ship": None},
    config={"rates": (1e-3,), "seed": 0},
    count={"val": 3},
    machine={"device": "cpu"},
    seconds=1.5,
    picture=None,
)


def test_results_are_strict_json(tmp_path: Path):
    append_result(tmp_path, RESULT)
    with pytest.raises(ValueError, match="not JSON compliant"):  # before anything is written
        append_result(tmp_path, replace(RESULT, scores={"mIoU": float("nan")}))
    (line,) = read_results(tmp_path)
    assert line["classes"] == RESULT.classes


def test_keys_identify_evaluations():
    elsewhere = replace(RESULT, seconds=9.0, machine={"device": "H200"}, weights="elsewhere")
    others: dict[str, Any] = {"protocol": "kmeans", "data": "voc12:/other", "weights_hash": "f"}
    others |= {"hold_out": 0.25, "machine": {"precision": "bfloat16"}, "network_hash": "n"}
    others |= {"data_hash": "d", "protocol_version": 2}
    changed = [replace(RESULT, **{name: value}) for name, value in others.items()]  # pyright: ignore
    changed.append(replace(RESULT, config={"rates": (1e-3,), "seed": 1}))
    assert elsewhere.key == RESULT.key not in {result.key for result in changed}


def curve(to: Path, *runs: str) -> Any:
    options = ("--data", "scenes:4", "--protocols", "linear", "--to", str(to), "--workers", "0")
    return main(["evaluate", "curve", "--weights", *runs, *options, *SMALL])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 steps of 8 images; checkpoints after the 3rd, the 6th, the 8th and the 9th."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"keep_every_steps": 3, "checkpoint_every_steps": 1, "report": False}
    pretrain(tiny_config(folder / "croc", **options), "demo")
    pretrain(tiny_dino(folder / "dino", **options, stop_after_steps=2), "dino-demo")
    return folder


def test_a_line_has_a_point_for_each_checkpoint(runs: Path, tmp_path: Path):
    points = points_of("CrOC", str(runs / "croc"))
    assert [(point.line, point.images) for point in points] == [
        ("CrOC", images) for images in (0, 24, 48, 64, 72)
    ]
    assert points[0].spec == f"random:{runs / 'croc'}"
    assert points[-1].spec.endswith("step-00000009.pt")
    # A run that started from other weights has no point of random ones.
    config, run = tiny_config(), tmp_path / "more"
    shutil.copytree(runs / "croc", run)
    write_config(run, replace(config, model=replace(config.model, init="a")), "demo")
    points = points_of(str(run), str(run))
    assert [(point.line, point.images) for point in points][:2] == [("more", 24), ("more", 48)]


def test_points_are_scored_once(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None, raising=False)
    weights = (f"CrOC={runs / 'croc'}", str(runs / "dino"))
    assert curve(tmp_path, *weights) == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["label"] for row in rows][4:6] == ["CrOC, 72 images", "dino, 0 images"]
    before, after = (row["cells"][0]["value"] for row in rows[:5:4])
    assert before != after
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    capsys.readouterr()
    assert curve(tmp_path, *weights) == 0
    # 8 rows of 6 networks: both runs start from the same, and dino's first step has rate 0.
    assert "6 cells, 6 already finished" in capsys.readouterr().err
