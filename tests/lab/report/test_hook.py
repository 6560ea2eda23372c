"""What training draws and writes on its way, and that it changes nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from croc.config import PretrainConfig
from croc.data import open_source
from croc.io import read_metrics
from croc.lab.report import hook
from croc.lab.report.drawing import ClusterPictures
from croc.lab.report.hook import ReportHook
from croc.lab.report.pictures import cluster_pictures, pictures, steps_to_drop
from croc.method.backbone import Backbone
from croc.train.log import TIMINGS
from croc.train.loop import pretrain as plain_pretrain
from tests.tiny import tiny_config, tiny_dino, tiny_mae

pretrain = partial(plain_pretrain, on_save=ReportHook)


@pytest.fixture
def at_all_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the steps, every checkpoint is drawn."""
    monkeypatch.setattr(hook, "SHARE", 1e9)


@pytest.mark.usefixtures("at_all_costs")
def test_every_checkpoint_has_its_picture_and_the_page_is_of_the_last(tmp_path: Path):
    run = pretrain(tiny_config(tmp_path / "run"), "tiny")
    assert list(pictures(run)) == [0, 2, 4, 6, 8, 9]
    shown, notes = cluster_pictures(run, 10**6)
    assert notes == []
    about = shown[-1]["about"]
    assert about["images"] == ["scene 0", "scene 1", "scene 2", "scene 3"]
    assert all(2 <= k <= 5 for row in about["k"] for k in row)
    assert all(1 / 5 < share < 1 for row in about["share"] for share in row)
    assert "as of step 9 of 9" in (run / "report.html").read_text()
    assert not list(run.rglob("*.partial"))
    with Image.open(pictures(run)[9]) as first, Image.open(pictures(run)[0]) as last:
        assert first.size == last.size
        assert first.tobytes() != last.tobytes()


def test_the_run_is_the_same_without_it(tmp_path: Path, at_all_costs: None):
    """To the last digit, when it is drawn after every step."""
    told = []
    for report in (True, False):
        config = tiny_config(tmp_path / str(report), report=report, checkpoint_every_steps=1)
        lines = read_metrics(pretrain(config, "tiny"))
        told.append([{k: v for k, v in line.items() if k not in TIMINGS} for line in lines])
    assert told[0] == told[1]
    assert not (tmp_path / "False" / "report.html").exists()
    assert not (tmp_path / "False" / "pictures").exists()


def test_drawing_may_take_a_small_share_of_the_time(tmp_path: Path):
    """A tiny run's checkpoints come too fast for it: only the first and the last are drawn."""
    run = pretrain(tiny_config(tmp_path / "run"), "tiny")
    assert {0, 9} <= set(pictures(run)) < {0, 2, 4, 6, 8, 9}


def test_a_failure_is_said_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise RuntimeError("no ink\nat all")

    monkeypatch.setattr(ClusterPictures, "draw", fail)
    monkeypatch.setattr(hook, "SHARE", 1e9)
    run = pretrain(tiny_config(tmp_path / "run"), "tiny")
    said = capsys.readouterr().err
    assert said.count("the report cannot be drawn (RuntimeError: no ink); training continues") == 1
    assert len(read_metrics(run)) == 9
    assert "as of step 9 of 9" in (run / "report.html").read_text()  # it is only without pictures


@pytest.mark.parametrize("tiny", [tiny_dino, tiny_mae])
def test_methods_without_clusters_have_no_pictures(
    tmp_path: Path, tiny: Callable[..., PretrainConfig]
):
    run = pretrain(tiny(tmp_path / "run"), "tiny")
    page = (run / "report.html").read_text()
    assert not (run / "pictures").exists()
    assert 'data-place="curves"' in page
    assert 'data-place="clusters"' not in page


@pytest.mark.usefixtures("at_all_costs")
def test_a_resumed_run_forgets_what_it_has_yet_to_do(tmp_path: Path):
    config = tiny_config(tmp_path / "run")
    run = pretrain(replace(config, run=replace(config.run, stop_after_steps=4)), "tiny")
    stray = run / "pictures" / "clusters-00000900.jpg"
    stray.write_bytes((run / "pictures" / "clusters-00000004.jpg").read_bytes())
    pretrain(config, "tiny")
    assert list(pictures(run)) == [0, 2, 4, 6, 8, 9]


def test_images_that_cannot_be_decoded_are_passed_over(tmp_path: Path):
    for number in range(6):
        path = tmp_path / "data" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (48, 40), (40 * number, 90, 30)).save(path)
    (tmp_path / "data" / "0.jpg").write_bytes(b"\xff\xd8 none")
    config = tiny_config()
    config = replace(config, data=replace(config.data, root=(str(tmp_path / "data"),)))
    backbone = Backbone(config.model, config.views.size_px)
    source = open_source(config.data, 0)
    ClusterPictures(config, source, tmp_path).draw(backbone.state_dict(), 7)
    with Image.open(pictures(tmp_path)[7]) as picture:
        names = json.loads(picture.info["comment"])["images"]
    assert [Path(name).name for name in names] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]


def test_pictures_are_thinned_evenly():
    steps: list[int] = []
    for step in range(0, 100_001, 500):
        steps.append(step)
        for dropped in steps_to_drop(steps):
            steps.remove(dropped)
    gaps = [after - before for before, after in pairwise(steps)]
    assert len(steps) == 12
    assert (steps[0], steps[-1]) == (0, 100_000)
    assert max(gaps) <= 4 * min(gaps[:-1])
