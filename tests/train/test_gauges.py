"""Gauges of dense quality on synthetic features, and in interrupted and resumed runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from croc.config import PretrainConfig
from croc.data.sources import open_source
from croc.io import read_gauges
from croc.lab.report.page import read_run, report
from croc.method.types import Clusters
from croc.train.distributed import make_fabric
from croc.train.gauges import (
    START,
    Gauges,
    count_matches,
    measure_drift,
    patch_similarities,
    token_statistics,
)
from croc.train.loop import make_method, pretrain
from tests.tiny import tiny_config, tiny_mae
from tests.train import killed_at

NAMES = {"step", "position", "image", "neighbors", "rank", "agreement", "agreement_chance"}


def synthetic(place: float, image: float, rest: float) -> Tensor:
    """Tokens of 64 images with these shares of variance."""
    g = torch.Generator().manual_seed(0)
    shapes = (1, 16, 8, 8), (64, 16, 1, 1), (64, 16, 8, 8)
    parts = (w**0.5 * torch.randn(s, generator=g) for w, s in zip((place, image, rest), shapes))
    return sum(parts, start=torch.zeros(64, 16, 8, 8))


@pytest.mark.parametrize(
    ("weights", "neighbors", "tolerance"),
    [
        ((1, 0, 0), None, 1e-6),
        ((0, 1, 0), 1.0, 1e-6),
        ((0.5, 0.25, 0.25), None, 0.05),
        ((0, 0, 1), 0.0, 0.05),
        ((0, 0.5, 0.5), 0.5, 0.05),
    ],
)
def test_shares_of_variance_and_correlation_of_neighbors(weights, neighbors, tolerance):
    """Independent of the scale and offset of the features; constant ones are ignored."""
    tokens = synthetic(*weights)
    shares, _ = token_statistics(tokens.split(10))
    # A mean over 64 independent values keeps 1/64 of their variance.
    assert shares.position == pytest.approx(weights[0], abs=tolerance)
    assert shares.image == pytest.approx(weights[1], abs=tolerance)
    assert neighbors is None or shares.neighbors == pytest.approx(neighbors, abs=0.05)
    other = tokens * torch.linspace(0.1, 50, 16)[:, None, None] + 7
    other = torch.cat([other, torch.full_like(other[:, :1], 3.0)], dim=1)
    scaled, _ = token_statistics([other])
    assert (scaled.position, scaled.image) == pytest.approx(
        (shares.position, shares.image), abs=1e-6
    )


def test_rank_is_the_effective_rank_of_singular_values():
    for rank in (1, 4, 16):  # equally strong directions
        mixing = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1))).Q
        tokens = torch.einsum("bchw,cd->bdhw", synthetic(0, 0, 1)[:, :rank], mixing[:rank])
        assert token_statistics(tokens.split(10))[0].rank == pytest.approx(rank, rel=0.02)
    tokens = synthetic(0.5, 0.2, 0.3)[:2] + 0.5
    singular = torch.linalg.svdvals(tokens.double().permute(0, 2, 3, 1).flatten(0, 2))
    p = singular / singular.sum() + 1e-7
    assert token_statistics([tokens])[0].rank == pytest.approx((-p * p.log()).sum().exp().item())


def hard_clusters(labels: Tensor, k: int, valid: Tensor) -> Clusters:
    """One head; labels "M B N"."""
    assignments = torch.nn.functional.one_hot(labels, k).float()[:, :, None]
    images = labels.shape[1]
    return Clusters(assignments, valid, torch.zeros(images, 1), torch.full((images, 1), k))


def test_invalid_clusters_are_neither_counted_nor_matched():
    """One image of three has a single valid cluster, another a pruned copy of a valid one."""
    labels = torch.arange(4).repeat(2, 3, 1)
    patches = torch.eye(4).repeat(2, 3, 1, 1)
    patches[1, 1] = patches[1, 1, [2, 1, 0, 3]]  # cluster 0 is most similar to the pruned cluster 2
    valid = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)[:, None]
    patches[1, 1, 0, 0] = 0.1
    assert count_matches(patches, hard_clusters(labels, 4, valid)) == (2 * 7, 7, 2)


def test_drift_is_0_for_the_same_similarities_and_1_for_unrelated_ones():
    tokens = torch.randn(20, 64, 12, 12, generator=torch.Generator().manual_seed(0))
    tokens[:, :8] *= 4
    start = patch_similarities(tokens)
    rotation = torch.linalg.qr(torch.randn(64, 64)).Q
    same = torch.einsum("bchw,cd->bdhw", 3 * tokens, rotation)
    assert measure_drift(patch_similarities(same), start) < 1e-6
    for share in (0.1, 0.5):  # this share of the similarities is replaced
        other = patch_similarities(tokens.roll(1, dims=0))
        mixed = measure_drift((1 - share) * start + share * other, start)
        unrelated = measure_drift(other, start)
        assert 0 < mixed < unrelated
    unit = torch.eye(144).expand(20, -1, -1) / 144
    assert measure_drift(unit + torch.ones_like(unit), unit) < 1e-6  # common to all patches
    signs = torch.ones(144).mul(1 - 2 * (torch.arange(144) % 2))
    across, along = (torch.outer(x, x)[None] for x in (signs, signs.sort().values))
    assert measure_drift(across, along) == pytest.approx(1)


def test_drift_after_resume_is_relative_to_the_start(whole: Path, tmp_path: Path):
    def config(name: str, **run: object) -> PretrainConfig:
        tiny = tiny_config(tmp_path / name, **run)
        return replace(tiny, model=replace(tiny.model, init=str(whole)))

    uninterrupted = pretrain(config("uninterrupted"), "tiny")
    drift = [line["drift"] for line in read_gauges(uninterrupted)]
    assert drift[0] == 0
    assert 0 < drift[1] < drift[-1] < 1
    assert f"<dt>drift</dt><dd>{drift[-1]:.3f}" in report([uninterrupted])
    pretrain(config("parts", stop_after_steps=4), "tiny")
    parts = pretrain(config("parts"), "tiny")
    assert read_gauges(parts) == read_gauges(uninterrupted)
    (parts / START).unlink()  # as in a run that started without gauges
    (parts / "gauges.jsonl").unlink()
    pretrain(config("parts"), "tiny")
    assert read_gauges(parts)[-1].keys() == NAMES


@pytest.mark.parametrize("tiny", [tiny_config, tiny_mae])
def test_gauges_of_a_resumed_run_equal_those_of_an_uninterrupted_one(
    tmp_path: Path, tiny: Callable[..., PretrainConfig]
):
    whole = pretrain(tiny(tmp_path / "whole"), "tiny")
    lines = read_gauges(whole)
    assert [line["step"] for line in lines] == [0, 2, 4, 6, 8, 9]
    for line in lines:
        assert line.keys() == NAMES
        assert all(0 < line[name] <= 1 for name in NAMES - {"step", "rank"})
        assert 1 < line["rank"] <= 192
    assert len({line["rank"] for line in lines}) > 1
    shown = read_run(whole)
    assert [step for step, _ in shown.metrics["rank"]] == [0, 2, 4, 6, 8, 9]

    with killed_at(5):
        pretrain(tiny(tmp_path / "run"), "tiny")
    with (tmp_path / "run" / "gauges.jsonl").open("a") as file:
        file.write('{"step": 5, "position": 0.5}\n{"step": 6, "pl')
    pretrain(tiny(tmp_path / "run"), "tiny")
    assert read_gauges(tmp_path / "run") == lines
    (whole / "gauges.jsonl").unlink()  # a signal leaves no time to measure them
    pretrain(tiny(whole), "tiny")
    assert read_gauges(whole) == lines[-1:]


def test_measuring_changes_neither_weights_nor_random_state(tmp_path: Path):
    """Images that cannot be decoded are skipped."""
    for number in range(6):
        path = tmp_path / "data" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((48, 40), 90).convert("RGB").save(path)
    (tmp_path / "data" / "0.jpg").write_bytes(b"\xff\xd8 broken")
    config = tiny_config()
    config = replace(config, data=replace(config.data, root=(str(tmp_path / "data"),)))
    backbone = make_method(config, torch.device("cpu")).backbones[0].train()
    weights = backbone.state_dict()
    copies = {name: value.clone() for name, value in weights.items()}
    before = torch.get_rng_state()
    gauges = Gauges(make_fabric(config.run), config, open_source(config.data, 0), tmp_path)
    first, second = gauges.measure(weights, 0), gauges.measure(weights, 0)
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in backbone.modules())
    assert all(torch.equal(value, copies[name]) for name, value in weights.items())
