"""Small views first: the schedule of their size, and runs that go through it."""

from dataclasses import replace
from pathlib import Path

import pytest

import croc.method.croc as step
from croc.config import CrocConfig, PretrainConfig, ViewsConfig
from croc.errors import UserError
from croc.method.build import build_method
from croc.method.views import views_at
from croc.recipes import without_clusters
from croc.train.distributed import make_fabric
from croc.train.loop import pretrain
from tests.tiny import tiny_config, tiny_mae
from tests.train import metrics_of


def early(folder: Path | None = None, px: int = 16, epochs: int = 1, **run: object) -> CrocConfig:
    config = tiny_config(folder, report=False, **run)
    return replace(config, views=replace(config.views, early_px=px, early_epochs=epochs))


def test_the_size_follows_the_epochs_and_the_blur_follows_the_size():
    views = ViewsConfig(size_px=224, early_px=112, early_epochs=3, blur_sigma=(0.2, 2.0))
    assert [views_at(views, epoch).size_px for epoch in range(5)] == [112, 112, 112, 224, 224]
    assert views_at(views, 0).blur_sigma == pytest.approx((0.1, 1.0))
    assert views_at(views, 3) is views


@pytest.mark.parametrize("dino", [False, True])
def test_a_run_sees_small_views_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dino: bool):
    seen: list[int] = []
    real = step.make_views

    def watched(canvases, views, *more):
        seen.append(views.size_px)
        return real(canvases, views, *more)

    monkeypatch.setattr(step, "make_views", watched)
    config: PretrainConfig = early(tmp_path / "run")
    assert isinstance(config, CrocConfig)
    pretrain(without_clusters(config) if dino else config, "tiny")
    assert seen == [16] * 3 + [32] * 6


@pytest.mark.parametrize("stop", [3])
def test_resumed_around_the_change_it_is_the_same_run(tmp_path: Path, stop: int):
    whole = metrics_of(pretrain(early(tmp_path / "whole"), "tiny"))
    pretrain(early(tmp_path / "parts", stop_after_steps=stop), "tiny")
    assert metrics_of(pretrain(early(tmp_path / "parts"), "tiny")) == whole


def test_early_views_of_the_same_size_change_nothing(tmp_path: Path):
    plain = metrics_of(pretrain(tiny_config(tmp_path / "plain", report=False), "tiny"))
    same = metrics_of(pretrain(early(tmp_path / "same", px=32), "tiny"))
    assert same == plain


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: early(px=20), "--views.early-px 20 is not a whole number of 8 px patches"),
        (lambda: early(px=8), "--cluster.k-start 5 is more than the 2 tokens"),
        (lambda: early(epochs=0), "--views.early-px and --views.early-epochs belong together"),
        (
            lambda: replace(tiny_mae(), views=early().views),
            "--views.early-px is not for MAE",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, says: str):
    with pytest.raises(UserError, match=says):
        build_method(make(), make_fabric(tiny_config().run).device, compile=False)
