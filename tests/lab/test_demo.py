"""The demo: what it leaves, and when it fails."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from croc.cli import main
from croc.eval.protocols import linear_protocol
from croc.eval.results import read_results
from croc.lab import demo
from croc.train.loop import pretrain
from croc.weights.export import Export, export
from tests.tiny import FLAGS, tiny_config


def test_demo_leaves_run_scores_and_pictures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny = pretrain(tiny_config(tmp_path / "tiny", stop_after_steps=1, report=False), "tiny")
    export(Export(str(tiny), str(tmp_path / f"{demo.SHIPPED}.safetensors")))
    monkeypatch.setenv("CROC_WEIGHTS", str(tmp_path))
    few = replace(linear_protocol("scenes"), image_px=32, steps=3)
    monkeypatch.setattr(demo, "linear_protocol", lambda _: few)
    monkeypatch.setattr(demo, "LEAST_GAIN", -100.0)  # nine steps teach nothing
    monkeypatch.setattr(demo, "judge", lambda *_: True)
    run = tmp_path / "run"
    assert main(["demo", *FLAGS, "--run.folder", str(run)]) == 0
    out = capsys.readouterr().out
    assert "mIoU" in out
    trained, untrained = read_results(run / "evaluation")
    assert (trained["backbone"], untrained["backbone"]) == ("run@9", "run@0")
    for name in ("report.html", "evaluation", "metrics.jsonl", "checkpoints", "tensorboard"):
        assert str(run / name) in out
        assert (run / name).exists()
    for name in ("clusters.png", f"{demo.SHIPPED}.png"):
        assert str(run / name) in out
        with Image.open(run / name) as picture:
            assert min(picture.size) > 100


def test_demo_requires_a_gain(monkeypatch: pytest.MonkeyPatch):
    scores = iter([36.0, 30.0, 34.0, 30.0])
    result = lambda *_, **__: [SimpleNamespace(scores={"mIoU": next(scores)})]  # noqa: E731
    monkeypatch.setattr(demo, "evaluate", result)
    assert demo.compare(Path("run"), "cpu")
    assert not demo.compare(Path("run"), "cpu")
    monkeypatch.setattr(demo, "run_demo", lambda config: False)
    with pytest.raises(SystemExit, match="1"):
        main(["demo"])


def test_demo_requires_falling_losses_and_no_collapse():
    for losses, shares, learned in (
        ([5.0, 4.0, 3.0], [0.5, 0.4, 0.3], True),
        ([5.0, 4.0, 5.1], [0.5, 0.4, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.04, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.6, 0.96], False),
    ):
        entropies = [share * math.log(64) for share in shares]
        lines = [{"loss_image": x, "entropy_image": y} for x, y in zip(losses, entropies)]
        assert demo.judge(lines, "image", 64) == learned
