"""What is read, however odd it is, and what is made of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.cli import main
from croc.lab.report.build import report
from croc.lab.report.curves import MOST, curves
from croc.lab.report.evaluations import find_scores
from croc.lab.report.pictures import pictures
from croc.lab.report.reading import Run, Series, read_run
from croc.lab.report.summary import duration, last_step, summary
from croc.lab.web.page import embed_json, make_page, text
from tests.report.fakes import HOSTILE, add_bench, add_pictures, add_scores, line, make_run


def test_the_page_lies_where_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run")
    assert main(["show", "report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    to = tmp_path / "both.html"
    assert main(["show", "report", str(run), str(run), "--to", str(to)]) == 0
    assert "2 runs compared" in to.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a run's folder"),
        (["nothing"], "nothing holds no run"),
        (["run", "--to", "page.txt"], "give it the ending .html"),
        (["run", "--to", "no/page.html"], "there is no folder no"),
        (["run", "--scores", "no.jsonl"], "--scores no.jsonl cannot be read"),
        (["run", "--scores", "run/config.json"], "holds no line of croc evaluate"),
        (["list"], "list/config.json is no configuration of a CrOC run"),
        (["half"], "half/config.json is no configuration of a CrOC run"),
        (["run"] * 17, "17 runs are too many"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 3)
    for name, config in (("list", "[1, 2]"), ("half", '{"recipe": "x", "opt')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    assert main(["show", "report", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("metrics", "note", "steps"),
    [
        (None, "metrics.jsonl is not there yet", 0),
        ("", "holds no line yet", 0),
        (
            json.dumps(line(1)) + '\n{"step": 2, "lo',
            "the last line of metrics.jsonl is not whole",
            1,
        ),
        (
            '["foreign"]\n{"a": 1}\n' + json.dumps(line(5)),
            "2 lines of metrics.jsonl are none of",
            5,
        ),
        ('{"step": 3, "loss": NaN, "rate": 1e999, "x": "y", "z": 0.5}', "3 values in metrics", 3),
        ('{"step": 1e300, "loss": 1}\n' + json.dumps(line(2)), "1 lines of metrics.jsonl", 2),
        ("[" * 100_000 + "\n" + json.dumps(line(2)), "1 lines of metrics.jsonl", 2),
    ],
)
def test_metrics_in_any_state_give_a_page(
    metrics: str | None, note: str, steps: int, tmp_path: Path
):
    run = make_run(tmp_path / "run", 1)
    (run / "metrics.jsonl").unlink()
    if metrics is not None:
        (run / "metrics.jsonl").write_text(metrics)
    found = read_run(run)
    assert any(note in each for each in found.notes)
    assert found.step == steps
    assert note.split("'")[0] in report([run])


def test_bad_benches_pictures_and_scores_are_left_out_with_a_note(tmp_path: Path):
    run = make_run(tmp_path / "run", 5)
    add_pictures(run, (0, 3))
    (run / "pictures" / "clusters-00000003.jpg").write_bytes(b"none")
    add_scores(run, picture="../../../secret.png")
    with (run / "evaluations" / "results.jsonl").open("a") as file:
        file.write('{"protocol": "linear"}\n{"scores": {"mIoU": 1}}\n{"half')
    (run / "bench.json").write_text('{"settings": 3}')
    page = report([run])
    assert "clusters-00000003.jpg cannot be read" in page
    assert "3 lines of " in page
    assert "bench.json holds no figures of ours" in page
    assert page.count("23.2") >= 1
    (run / "bench.json").write_text("{")
    assert "bench.json cannot be read" in report([run])
    add_bench(run)
    assert "a processor" in report([run])


def test_pictures_lie_beside_their_results_or_are_not_taken(tmp_path: Path):
    run = make_run(tmp_path / "run", 5)
    for picture in ("/etc/passwd", "../../other.png", "", None, 7, "a\0b"):
        path = add_scores(run, picture=picture)
        scores, _ = find_scores([read_run(run)], [])
        assert all(each.picture is None for each in scores)
        for each in sorted(path.parent.rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() else each.unlink()
        path.parent.rmdir()


def test_scores_find_their_runs(tmp_path: Path):
    """By the folder that was scored, by where the line lies, by a run's name; or none."""
    runs = [read_run(make_run(tmp_path / name, 3)) for name in ("one", "two")]
    own = add_scores(runs[0].folder)
    lines = [json.loads(each) for each in own.read_text().splitlines()]
    own.write_text(json.dumps(lines[0] | {"weights": "elsewhere", "backbone": "x"}) + "\n")
    changes = (
        {"weights": str(runs[1].folder / "checkpoints" / "step-00000003.pt")},
        {"weights": f"random:{runs[1].folder}"},
        {"weights": "moved", "backbone": "two@3"},
        {"weights": "timm:vit", "backbone": "vit"},
    )
    other = tmp_path / "results.jsonl"
    other.write_text("".join(json.dumps(lines[0] | change) + "\n" for change in changes))
    scores, notes = find_scores(runs, [other])
    assert [score.run for score in scores] == [0, 1, 1, 1, None]
    assert notes == []


@pytest.mark.parametrize("per_epoch", [1, 3, 42, 462])
def test_the_steps_of_an_epoch_are_found_from_the_lines(per_epoch: int):
    run = Run(Path("x"), "x", "x", "croc", {"optim.epochs": 20})
    run.epochs = [(step - 1, (step - 1) // per_epoch) for step in range(10, 20 * per_epoch + 1, 10)]
    run.epochs.append((20 * per_epoch - 1, 19))
    assert run.steps_per_epoch == per_epoch
    assert last_step(run) == 20 * per_epoch
    run.epochs = run.epochs[:1] if per_epoch > 10 else []
    assert run.steps_per_epoch is None


def test_thinned_curves_keep_what_stands_out():
    values = np.sin(np.arange(100_000) / 50)
    values[[777, 54_321]] = 9.0, -9.0
    run = Run(Path("x"), "x", "x", "croc", {})
    run.metrics["loss"] = Series(list(range(1, 100_001)), values.tolist())
    curve = curves(run, MOST)["loss"]
    assert len(curve["x"]) == MOST
    assert (max(curve["hi"]), min(curve["lo"])) == (9.0, -9.0)
    assert curve["x"][-1] == 100_000
    assert all(lo <= y <= hi for lo, y, hi in zip(curve["lo"], curve["y"], curve["hi"]))


def test_many_large_runs_stay_under_ten_megabytes(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (2, 500, 400, 3), np.uint8)
    runs = [make_run(tmp_path / f"run-{number}", 700) for number in range(16)]
    for run in runs:
        add_scores(run, tuple(f"class {number}" for number in range(150)))
        Image.fromarray(noise[0]).save(run / "evaluations" / "pictures" / "one.png")
        add_pictures(run, (1, 2, 3))
        for step, path in pictures(run).items():
            Image.fromarray(noise[step % 2, :300]).save(path, quality=90)
    page = report(runs)
    assert 4_000_000 < len(page) < 10_000_000
    assert "the page would grow too large" in page
    assert "too many classes to show" in page


def test_names_cannot_leave_the_data_or_the_text():
    page = make_page(HOSTILE[1], "", data=list(HOSTILE))
    inside = page.split('id="page-data">')[1].split("</script>")[0]
    assert json.loads(inside) == list(HOSTILE)
    assert not set("<>&\u2028") & set(inside)
    assert "<title>&lt;/script&gt;" in page
    assert text("\"\udc80'") == "&quot;?&#x27;"
    assert embed_json("\udc80") == '"\\udc80"'


@pytest.mark.parametrize(("effective", "mark"), [(2.0, "as it should be"), (3.5, "look at this")])
def test_soft_clusters_are_marked(effective: float, mark: str, tmp_path: Path):
    """A token may be spread over half of the clusters, not more."""
    run = read_run(make_run(tmp_path / "run", effective_clusters=effective, k_mean=4.0))
    (fact,) = re.findall(r"<dt>clusters per token</dt><dd.*?</dd>", summary([run]))
    assert f"{effective} of 4.0" in fact
    assert mark in fact


def test_durations():
    assert [duration(each) for each in (0.0, 61.0, 3600.5, 90061.0)] == [
        "0 s",
        "1 min 1 s",
        "1 h 0 min",
        "1 d 1 h",
    ]
