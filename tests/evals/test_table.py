"""`croc evaluate table`: cells that are computed once, marks, and labels that hold anything."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from croc.cli import main
from croc.eval import evaluate
from croc.eval.protocols import linear_protocol
from croc.eval.results import read_results
from croc.eval.table import make
from croc.eval.table.command import Wanted, split_label
from croc.eval.table.identity import identify_data, identify_network
from croc.eval.table.layout import (
    data_titles,
)
from croc.eval.table.plan import plan_tasks, plan_weights
from tests.evals.commands import SMALL, call, segmentation_tree
from tests.evals.trees import davis, gray_png, label_map, write

TINY = "random:vit_tiny_patch16_224"
OTHER = "random:resnet10t"
HOSTILE = (
    r"""</td><script>alert("1")</script>&amp; | **x** `y` [red]a[/] \end{tabular}\\ %$#_{}~^ ±"""
)


def make_one(to: Path, weights: Sequence[str], *more: str, data: Sequence[str] = ()) -> Any:
    flags = [flag for protocol in ("linear", "kmeans") for flag in SMALL[protocol]]
    given = ("--weights", *weights, "--data", *(data or ("scenes:4",)), "--to", str(to))
    chosen = () if "--protocols" in more else ("--protocols", "linear", "kmeans")
    arguments = ["evaluate", "table", *given, "--workers", "0", *chosen, *flags, *more]
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The weights and protocol of every cell that is really computed; pictures are not drawn."""
    calls: list[tuple[str, str]] = []

    def counting(protocol: str, run: Any) -> Any:
        def counted(job: evaluate.Job) -> evaluate.Found:
            calls.append((job.weights.spec, protocol))
            return run(job)

        return counted

    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None)
    for name, run in list(evaluate.RUNNERS.items()):
        monkeypatch.setitem(evaluate.RUNNERS, name, counting(name, run))
    return calls


def test_three_weights_by_one_command(
    run: Path,
    tmp_path: Path,
    computed: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
):
    weights = [f"CrOC={run}", f"untrained=random:{run}", TINY]
    assert make_one(tmp_path, weights) == 0
    said = capsys.readouterr()
    assert "6 cells, 0 of them finished before" in said.err
    assert "cell 6 of 6: random:vit_tiny_patch16_224, kmeans on scenes:4" in said.err
    page = json.loads((tmp_path / "table.json").read_text())
    assert [row["label"] for row in page["rows"]] == ["CrOC", "untrained", TINY]
    assert [row["model"] for row in page["rows"]] == [*["ViT/8, 2 blocks of 192"] * 2, "ViT-Ti/16"]
    assert (page["rows"][0]["data"], page["rows"][0]["epochs"]) == ("scenes", "0.7")
    found = [cell["value"] for row in page["rows"] for cell in row["cells"]]
    assert found == [line["scores"]["mIoU"] for line in read_results(tmp_path)]
    for name in ("table.md", "table.tex", "table.html"):
        text = (tmp_path / name).read_text()
        assert all(f"{value:.1f}" in text for value in found)
        assert "±" in text or r"$\pm$" in text
    assert all(f"{value:.1f}" in said.out for value in found)

    first = {path.name: path.read_bytes() for path in tmp_path.glob("table.*")}
    assert len(computed) == 6
    assert make_one(tmp_path, weights) == 0
    assert len(computed) == 6
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*able.*")} == first
    assert make_one(tmp_path, [weights[2], f"again={run}", f"and again={run}"]) == 0
    assert len(computed) == 6
    assert make_one(tmp_path, weights, "--linear.seed", "1") == 0
    assert [protocol for _, protocol in computed[6:]] == ["linear"] * 3


def test_what_croc_evaluate_found_is_a_finished_cell(
    run: Path, tmp_path: Path, computed: list[tuple[str, str]]
):
    assert call("linear", run, "scenes:4", tmp_path) == 0
    assert make_one(tmp_path, [str(run)], "--protocols", "linear") == 0
    assert len(computed) == 1


def test_scores_of_another_precision_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not every CPU has bfloat16, so nothing is really computed."""
    seen: list[torch.dtype] = []

    def pretend(job: evaluate.Job) -> evaluate.Found:
        seen.append(job.machine.precision)
        return evaluate.Found({"mIoU": 1.0}, {}, None)

    monkeypatch.setitem(evaluate.RUNNERS, "linear", pretend)
    for precision in ("float32", "bfloat16", "auto"):
        more = ("--protocols", "linear", "--device", "cpu", "--precision", precision)
        assert make_one(tmp_path, [TINY], *more) == 0
    assert seen == [torch.float32, torch.bfloat16]


def test_it_goes_on_after_a_kill(
    tmp_path: Path, computed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    weights = [TINY, OTHER]
    with monkeypatch.context() as patch:
        patch.setitem(evaluate.RUNNERS, "kmeans", killed)
        assert make_one(tmp_path, weights) == 130
    assert not list(tmp_path.glob("table.*"))
    assert len(read_results(tmp_path)) == 1
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('[1]\n{"protocol": "linear", "sco')
    assert make_one(tmp_path, weights) == 0
    assert computed == [(spec, name) for spec in weights for name in ("linear", "kmeans")]


def test_changed_weights_and_data_are_computed_anew(
    tmp_path: Path, computed: list[tuple[str, str]]
):
    state = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
    torch.save(state, tmp_path / "w.pth")
    weights = [f"file=timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}"]
    data = [segmentation_tree(tmp_path / "tree")]
    linear = ("--protocols", "linear")
    assert make_one(tmp_path / "out", weights, *linear, data=data) == 0
    shutil.copytree(tmp_path / "tree", tmp_path / "copy")
    moved = [f"folder:{tmp_path / 'copy'}"]
    assert make_one(tmp_path / "out", weights, *linear, data=moved) == 0
    assert len(computed) == 1
    torch.save(state | {"cls_token": state["cls_token"] + 1}, tmp_path / "w.pth")
    assert make_one(tmp_path / "out", weights, *linear, data=data) == 0
    assert len(computed) == 2
    (tmp_path / "tree" / "labels/val/0.png").write_bytes(gray_png(label_map(0, 1, 1, 255)))
    assert make_one(tmp_path / "out", weights, *linear, data=data) == 0
    assert len(computed) == 3


def test_a_cell_that_fails_costs_no_other(
    tmp_path: Path,
    computed: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    real = evaluate.RUNNERS["linear"]

    def full(job: evaluate.Job) -> evaluate.Found:
        if job.weights.spec == TINY:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return real(job)

    weights = [f"A={TINY}", f"B={OTHER}"]
    with monkeypatch.context() as patch:
        patch.setitem(evaluate.RUNNERS, "linear", full)
        assert make_one(tmp_path, weights) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("croc: 1 of 4 cells failed, the same command computes only these again")
    assert "A, linear on scenes:4 (OutOfMemoryError: CUDA out of memory. Tried" in last
    assert "| A | ViT-Ti/16 | – |" in (tmp_path / "table.md").read_text()
    page = json.loads((tmp_path / "table.json").read_text())
    assert [(each["label"], each["protocol"]) for each in page["failed"]] == [("A", "linear")]
    assert len(computed) == 3
    assert make_one(tmp_path, weights) == 0
    assert computed[3:] == [(TINY, "linear")]


def test_weights_that_change_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    other = replace(evaluate.open_weights(TINY), hash="0" * 16)
    monkeypatch.setattr(make, "open_weights", lambda _: other)
    assert make_one(tmp_path, [TINY]) == 1
    assert "changed while the table was made" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("weights", "data", "more", "said"),
    [
        ([TINY, "nowhere"], ["scenes:4"], (), "no such run or file"),
        ([TINY, "B=random:vit_smal_patch16_224"], ["scenes:4"], (), "B: --weights: timm has no"),
        ([TINY], ["scenes:4", "voc12:nowhere"], (), "nowhere is missing"),
        ([TINY], ["scenes:4", "voc13:x"], (), "no data set is called voc13:x"),
        ([TINY], ["scenes:4", "scenes:4"], (), "--data names scenes:4 twice"),
        ([TINY, TINY], ["scenes:4"], (), f"--weights names {TINY} twice"),
        (["A=x", "A=y"], ["scenes:4"], (), "two of the weights are called 'A'"),
        (["=x"], ["scenes:4"], (), "give LABEL=WEIGHTS"),
        (["A="], ["scenes:4"], (), "give LABEL=WEIGHTS"),
        ([], ["scenes:4"], (), "say which weights"),
        ([TINY], ["scenes:4"], ("--protocols",), "say which protocols"),
        ([TINY], ["scenes:4"], ("--protocols", "liner"), "invalid choice"),
        ([TINY], ["voc12:x"], ("--protocols", "video"), "video cannot be scored on voc12:x"),
        ([TINY], ["scenes:4", "davis16:x"], (), "davis16:x allows video, none of which"),
        ([TINY], ["scenes:4"], ("--linear.blocks", "13"), "has 12 blocks, not 13"),
        ([TINY], ["scenes:4"], ("--linear.image-px", "50"), "48 or 64 px would"),
        ([TINY], ["scenes:4"], ("--kmeans.pca", "193"), "backbone's width of 192"),
        ([TINY], ["scenes:4"], ("--kmeans.clusters", "5"), "fewer than the 13 classes"),
        ([TINY], ["scenes:4", "voc12:x"], ("--linear.framing", "keep"), "--linear.framing keep"),
        ([TINY], ["scenes:4"], ("--workers", "-1"), "--workers must be 0 or more"),
        ([TINY], ["DAVIS"], ("--protocols", "video"), "no video has 3 frames and a mask for each"),
    ],
)
def test_what_is_wrong_is_found_before_the_first_cell(
    weights: list[str],
    data: list[str],
    more: tuple[str, ...],
    said: str,
    tmp_path: Path,
    computed: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
):
    if data == ["DAVIS"]:
        known = {k: v for k, v in davis().items() if "Annotations" not in k or "00000" in k}
        data = [f"davis17:{write(tmp_path / 'davis', known)}"]
    assert make_one(tmp_path / "out", weights, *more, data=data) == 2
    heard = capsys.readouterr()
    assert said in heard.err
    assert len(heard.err.splitlines()) == 1
    assert (heard.out, computed) == ("", [])
    assert not (tmp_path / "out").exists()


def test_each_data_set_has_its_own_settings(monkeypatch: pytest.MonkeyPatch):
    asked: list[Wanted] = []

    def keep(_: object, __: object, wanted: list[Wanted]) -> bool:
        asked.extend(wanted)
        return True

    monkeypatch.setattr(make, "make_table", keep)
    data = ("--data", "voc12:x", "scenes", "davis17:y")
    more = ("--linear.steps", "7", "--kmeans.image_px=64")
    assert main(["evaluate", "table", "--weights", "a", *data, *more]) == 0
    found = {(each.protocol, each.data): each for each in asked}
    assert len(found) == 4 + 5 + 1
    voc, scenes = found["linear", "voc12:x"].config, found["linear", "scenes"].config
    assert (voc.steps, voc.epochs, voc.image_px, voc.blocks) == (7, None, 448, 4)
    assert (scenes.steps, scenes.image_px, scenes.rates) == (7, 96, linear_protocol("scenes").rates)
    assert found["linear", "scenes"].adapts
    assert not found["kmeans", "scenes"].adapts
    assert found["video", "davis17:y"].config.short_px == 480


def test_a_size_that_was_changed_is_told(tmp_path: Path):
    wanted = Wanted("linear", "scenes:1", linear_protocol("scenes"), adapts=True)
    machine = evaluate.Machine(torch.device("cpu"), torch.float32, 0)
    spec = "random:vit_small_patch14_reg4_dinov2"
    entry = plan_weights("D", spec, plan_tasks([wanted], tmp_path), machine)
    assert entry.notes == ("D: images of 98 px instead of 96 (linear), for patches of 14 px.",)


def test_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rate=0.1").mkdir()
    assert split_label("CrOC, ours=runs/x=y") == ("CrOC, ours", "runs/x=y")
    assert split_label("rate=0.1") == ("rate=0.1", "rate=0.1")
    assert split_label("timm:a@b=c.pth") == ("timm:a@b=c.pth", "timm:a@b=c.pth")
    assert split_label("two\n lines\x1b[31m=x")[0] == "two lines [31m"
    same = data_titles(["folder:a/x", "folder:b/x", "voc12:a"])
    assert list(same.values()) == ["folder:a/x", "folder:b/x", "VOC12"]


def test_the_same_weights_in_another_network_are_told_apart():
    weights = evaluate.open_weights(TINY)
    same = evaluate.open_weights("random:deit_tiny_patch16_224")
    assert (same.hash, same.network_hash) == (weights.hash, weights.network_hash)
    same.backbone.vit.blocks[0].mlp.act = torch.nn.ReLU()  # pyright: ignore
    assert evaluate.fingerprint(same.backbone) == weights.hash
    assert identify_network(same.backbone) != weights.network_hash
    weights.backbone.vit.blocks[0].attn.num_heads = 6  # pyright: ignore
    assert identify_network(weights.backbone) != weights.network_hash


def test_data_are_told_apart_by_what_they_hold(tmp_path: Path):
    data = segmentation_tree(tmp_path / "tree")
    before = identify_data(data)
    (tmp_path / "tree" / "out").mkdir()
    (tmp_path / "tree" / "out" / "table.md").write_text("mine")
    (tmp_path / "tree" / "circle").symlink_to(tmp_path / "tree")
    assert identify_data(data, tmp_path / "tree" / "out") == before
    assert identify_data(data) != before
    archive = shutil.make_archive(str(tmp_path / "packed"), "tar", tmp_path / "tree")
    assert identify_data(f"folder:{archive}") not in (before, identify_data(f"voc12:{archive}"))
    assert len({identify_data(spec) for spec in ("scenes", "scenes:4", "scenes:64")}) == 3


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path):
    make.write_whole(tmp_path, {"a": "old", "b": "old"})
    with pytest.raises(UnicodeEncodeError):
        make.write_whole(tmp_path, {"a": "new", "b": "\ud800"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}
