"""The demo: what it draws, scores and says, and when it is content with itself."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from croc.cli import main
from croc.eval.protocols import linear_protocol
from croc.eval.results import read_results
from croc.lab.demo import SHIPPED, judge
from croc.train.loop import pretrain
from croc.weights.export import Export, export
from tests.tiny import FLAGS, tiny_config


@pytest.mark.parametrize("expected", [-100.0, 100.0])
def test_the_demo_draws_scores_and_says_where_all_lies(
    expected: float,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Nine steps teach nothing; whether the gain is enough decides how the demo ends."""
    few = replace(linear_protocol("scenes"), image_px=32, steps=3)
    monkeypatch.setattr("croc.lab.demo.linear_protocol", lambda _: few)
    monkeypatch.setattr("croc.lab.demo.LEAST_GAIN", expected)
    monkeypatch.setattr("croc.lab.demo.judge", lambda *_: True)
    with pytest.raises(SystemExit) if expected > 0 else contextlib.nullcontext() as end:
        main(["demo", *FLAGS, "--run.folder", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert ("100.0 were expected" in said) == (expected > 0)
    assert end is None or end.value.code == 1
    assert "mIoU" in said
    trained, untrained = read_results(tmp_path / "run" / "evaluation")
    assert (trained["backbone"], untrained["backbone"]) == ("run@9", "run@0")
    for name in ("clusters.png", "evaluation", "metrics.jsonl", "checkpoints", "tensorboard"):
        assert str(tmp_path / "run" / name) in said
        assert (tmp_path / "run" / name).exists()
    with Image.open(tmp_path / "run" / "clusters.png") as picture:
        assert min(picture.size) > 100


def test_the_demo_shows_what_shipped_weights_see(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = pretrain(tiny_config(tmp_path / "tiny", stop_after_steps=1, report=False), "tiny")
    export(Export(str(run), str(tmp_path / f"{SHIPPED}.safetensors")))
    monkeypatch.setenv("CROC_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("croc.lab.demo.judge", lambda *_: True)
    monkeypatch.setattr("croc.lab.demo.compare", lambda *_: True)
    main(["demo", *FLAGS, "--run.folder", str(tmp_path / "run"), "--run.stop-after-steps", "1"])
    picture = tmp_path / "run" / f"{SHIPPED}.png"
    assert str(picture) in capsys.readouterr().out
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 100


@pytest.mark.parametrize(
    ("losses", "shares", "learned"),
    [
        ([5.0, 4.0, 3.0], [0.5, 0.4, 0.3], True),
        ([5.0, 4.0, 5.1], [0.5, 0.4, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.04, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.6, 0.96], False),
    ],
)
def test_the_demo_judges_itself(losses: list[float], shares: list[float], learned: bool):
    most = math.log(64)
    lines = [
        {"loss_image": loss, "entropy_image": share * most}
        for loss, share in zip(losses, shares, strict=True)
    ]
    assert judge(lines, "image", 64) == learned
