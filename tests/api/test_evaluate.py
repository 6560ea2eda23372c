"""`croc.evaluate`: scores from Python."""

import re
from pathlib import Path
from typing import Any

import pytest

import croc
from croc.cli import main
from croc.eval.results import read_results
from tests.api.refusals import refused


class TestEvaluate:
    def test_is_what_the_command_line_finds(
        self, run: croc.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        options: dict[str, Any] = {"seeds": 1, "restarts": 1}
        found = croc.evaluate("kmeans", run.folder, "scenes:4", **options)
        assert not list(tmp_path.iterdir())
        assert found.picture is None
        flags = ["--kmeans.seeds", "1", "--kmeans.restarts", "1", "--to", "out"]
        said = ["--weights", str(run.folder), "--data", "scenes:4", *flags]
        assert main(["evaluate", "kmeans", *said]) == 0
        (line,) = read_results(tmp_path / "out")
        assert found.scores == line["scores"]
        assert found.classes == line["classes"]
        assert found.weights_hash == line["weights_hash"]

    def test_writes_where_it_is_asked_to(self, run: croc.Run, tmp_path: Path):
        found = croc.evaluate(
            "linear", str(run.folder), "scenes:4", results=tmp_path / "out", epochs=1, workers=0
        )
        (line,) = read_results(tmp_path / "out")
        assert line["scores"] == found.scores
        assert (found.config["epochs"], found.config["steps"]) == (1, None)
        assert found.picture is not None
        assert (tmp_path / "out" / found.picture).is_file()

    def test_all(self, run: croc.Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("croc.lab.api.scores.protocols_of", lambda *_: ("incontext", "kmeans"))
        found = croc.evaluate("all", run.folder, "scenes:4", workers=0)
        assert [result.protocol for result in found] == ["incontext", "kmeans"]
        assert all(isinstance(result, croc.Result) for result in found)

    def test_holds_out(self, run: croc.Run):
        found = croc.evaluate(
            "incontext", run.folder, "scenes:8", hold_out=0.25, neighbours=3, workers=0
        )
        assert found.count == {"train": 6, "held out": 2}

    @pytest.mark.parametrize(
        ("protocol", "data", "options", "said"),
        [
            ("liner", "scenes", {}, "no protocol liner; perhaps you meant linear"),
            ("linear", "scenes", {"step": 3}, "no option step; perhaps you meant steps"),
            ("linear", "scenes", {"steps": "3"}, "the option steps cannot be '3'"),
            ("linear", "scenes", {"steps": 3, "epochs": 3}, "give one of them"),
            ("linear", "scenes", {"device": "gpu"}, "the option device cannot be 'gpu'"),
            ("linear", "scenes", {"workers": -1}, "--workers must be 0 or more"),
            ("video", "voc12:x", {}, "video cannot be scored on voc12:x"),
            ("kmeans", "voc13:x", {}, "no data set is called voc13:x"),
            ("all", "scenes", {"steps": 3}, "to change steps, name one protocol"),
            ("linear", Path("mine"), {}, "KIND:PATH, such as 'folder:mine', not the path mine"),
            ("linear", None, {}, "KIND:PATH, such as 'folder:mine', not None"),
        ],
    )
    def test_refuses(
        self, run: croc.Run, protocol: Any, data: Any, options: dict[str, Any], said: str
    ):
        refused(re.escape(said), croc.evaluate, protocol, run.folder, data, **options)
