"""What is read from run folders, what the page makes of it, and what the command refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.cli import main
from croc.lab.report.build import report
from croc.lab.report.pictures import pictures
from croc.lab.report.reading import Run, find_scores, read_run
from tests.lab.report.fakes import add_bench, add_pictures, add_scores, line, make_run

BAD = [
    ([], "name a run's folder"),
    (["nothing"], "nothing is not a run"),
    (["foreign"], "foreign/config.json is not the configuration of a CrOC run"),
    (["run"] * 17, "17 runs are too many"),
    (["run", "--to", "page.txt"], "must end in .html"),
    (["run", "--to", "no/page.html"], "there is no folder no"),
    (["run", "--scores", "no.jsonl"], "no.jsonl is not a results.jsonl of croc evaluate"),
    (["run", "--scores", "run/metrics.jsonl"], "is not a results.jsonl of croc evaluate"),
]


def test_command_writes_the_page_or_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 3)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"architectures": ["ViTModel"]}')
    for arguments, expected in BAD:
        assert main(["show", "report", *arguments]) == 2
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
    assert main(["show", "report", "run"]) == 0
    assert capsys.readouterr().out == "run/report.html\n"
    assert main(["show", "report", "run", "run", "--to", "both.html"]) == 0
    assert "2 runs compared" in Path("both.html").read_text()


@pytest.mark.parametrize(
    ("metrics", "note", "step"),
    [
        ("", "metrics.jsonl has no lines yet", 0),
        (json.dumps(line(1)) + '\n{"step": 2, "lo', None, 1),
        ('{"step": 3, "loss": NaN, "rate": Infinity, "z": 0.5}', "2 non-finite values", 3),
    ],
)
def test_live_run_gives_a_page(metrics: str, note: str | None, step: int, tmp_path: Path):
    folder = make_run(tmp_path / "run", 1)
    (folder / "metrics.jsonl").write_text(metrics)
    run = read_run(folder)
    assert run.step == step
    assert len(run.notes) == (note is not None)
    assert note is None or note in report([folder])


def test_unreadable_pictures_and_cut_off_scores_are_left_out(tmp_path: Path):
    run = make_run(tmp_path / "run", 5)
    add_pictures(run, (0, 3))
    (run / "pictures" / "clusters-00000003.jpg").write_bytes(b"none")
    results = add_scores(run)
    (results.parent / "pictures" / "one.png").write_bytes(b"none")
    with results.open("a") as file:
        file.write('{"half')
    add_bench(run)
    page = report([run])
    assert "clusters-00000003.jpg cannot be read" in page
    assert "one.png cannot be read" in page
    assert "mIoU <strong>23.2</strong>" in page
    assert "a processor · 190.5 images per second" in page


def test_scores_find_their_runs_and_no_foreign_pictures(tmp_path: Path):
    """By the evaluated path, by the folder of results.jsonl, by a run's name; or none."""
    runs = [read_run(make_run(tmp_path / name, 3)) for name in ("one", "two")]
    own = add_scores(runs[0].folder)
    result = json.loads(own.read_text().splitlines()[0])
    own.write_text(json.dumps(result | {"weights": "elsewhere", "backbone": "x"}) + "\n")
    changes = (
        {"weights": str(runs[1].folder / "checkpoints" / "step-00000003.pt")},
        {"weights": f"random:{runs[1].folder}", "picture": "/etc/passwd"},
        {"weights": "moved", "backbone": "two@3", "picture": "../../other.png"},
        {"weights": "timm:vit", "backbone": "vit"},
        {"weights": "timm:vit", "backbone": "vit", "picture": None},  # repeated
    )
    other = tmp_path / "results.jsonl"
    other.write_text("".join(json.dumps(result | change) + "\n" for change in changes))
    scores = find_scores(runs, [other])
    assert [score["run"] for score in scores] == [0, 1, 1, 1, None]
    assert [score["picture"] is None for score in scores] == [False, False, True, True, True]


@pytest.mark.parametrize("per_epoch", [1, 3, 462])
def test_steps_per_epoch_follow_from_the_log(per_epoch: int):
    run = Run(Path("x"), "x", "x", "croc", {"optim.epochs": 20})
    run.epochs = [(step - 1, (step - 1) // per_epoch) for step in range(10, 20 * per_epoch + 1, 10)]
    run.epochs.append((20 * per_epoch - 1, 19))
    assert run.steps_per_epoch == per_epoch
    assert run.progress == f"step 0 of {20 * per_epoch:,}"
    run.epochs = run.epochs[:1] if per_epoch > 10 else []
    assert run.steps_per_epoch is None


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
    assert "the page would be too large" in page
    assert "too many classes to show" in page


@pytest.mark.parametrize(("effective", "mark"), [(2.0, "healthy"), (3.5, "check this")])
def test_soft_clusters_are_marked(effective: float, mark: str, tmp_path: Path):
    """A token may be spread over half of the clusters, not more."""
    run = make_run(tmp_path / "run", effective_clusters=effective, k_mean=4.0)
    (fact,) = re.findall(r"<dt>clusters per token</dt><dd.*?</dd>", report([run]), re.DOTALL)
    assert f"{effective} of 4.0" in fact
    assert f'"{mark}"' in fact
