"""The merging drawn: colours that follow their clusters, costs, and the chosen K."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from croc.config import ClusterConfig
from croc.lab.show import merging
from croc.lab.show.look import look_at_run
from croc.lab.show.merging import draw_costs, draw_merging, find_merging, follow_colours
from croc.method.clustering.trace import TraceStep
from tests.show.test_figures import assert_nothing_clipped


def make_step(labels: list[int], k: int, into: list[int] | None) -> TraceStep:
    assignments = F.one_hot(torch.tensor(labels), k).float()[None, None, None]
    columns = None if into is None else torch.tensor(into)[None, None]
    valid, cost = torch.ones(1, 1, k, dtype=torch.bool), torch.zeros(1, 1)
    return TraceStep(assignments, valid, cost, None, columns)


def test_a_merged_cluster_keeps_the_larger_one_s_colour():
    steps = [
        make_step([0, 0, 0, 1, 2, 2, 3, 3, 3, 3], 4, None),
        make_step([0, 0, 0, 1, 1, 1, 2, 2, 2, 2], 3, [0, 1, 1, 2]),  # 2 is larger than 1
        make_step([0] * 3 + [1] * 7, 2, [0, 1, 1]),
    ]
    first, second, third = (each.tolist() for each in follow_colours(steps, 0))
    assert first == [1, 3, 2, 0]
    assert second == [1, 2, 0]
    assert third == [1, 0]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_every_step_has_colours_of_its_own(variant: str, run: Path, photograph: str):
    look = look_at_run(run)
    cluster = ClusterConfig(variant=variant, k_start=11)
    look = replace(look, config=replace(look.croc, cluster=cluster))
    found = find_merging(look, photograph, seed=1, side_px=None)
    assert len(found.trace.steps) == 10
    for head in range(3):
        colours = follow_colours(found.trace.steps, head)
        assert sorted(colours[0].tolist()) == list(range(11))
        for before, after in pairwise(colours):
            assert len(set(after.tolist())) == len(after) == len(before) - 1
            assert set(after.tolist()) < set(before.tolist())


@pytest.mark.parametrize("side_px", [None, 48])
def test_the_picture_clips_nothing(
    side_px: int | None, run: Path, photograph: str, monkeypatch: pytest.MonkeyPatch
):
    kept: list[Figure] = []
    monkeypatch.setattr(merging, "save_figure", lambda figure, path: kept.append(figure))
    look = look_at_run(run)
    look = replace(look, config=replace(look.croc, cluster=ClusterConfig(k_start=12)))
    draw_merging(look, photograph, None, 0, (0, 2), side_px)
    (figure,) = kept
    views = 1 if side_px else 2
    assert len(figure.axes) == 2 * (8 * views + 1)
    assert_nothing_clipped(figure)
    trace = find_merging(look, photograph, 0, side_px).trace
    largest = [step.assignments[:, 0, 0].amax(dim=-1).mean() for step in trace.steps[-7:]]
    labels = [text.get_text() for text in figure.texts]
    for k, share in zip(range(8, 1, -1), largest):
        assert f"K {k} · share {share:.2f}" in labels


def test_the_cost_at_each_k_and_the_chosen_one(run: Path, photograph: str):
    found = find_merging(look_at_run(run), photograph, seed=0, side_px=None)
    axes = Figure().add_subplot()
    draw_costs(axes, found.trace, 1, 3)
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [5, 4, 3, 2]
    torch.testing.assert_close(
        torch.tensor(line.get_ydata().tolist()), found.trace.costs[0, 1], rtol=1e-6, atol=0
    )
    hidden, shown, ring = axes.collections
    assert (len(hidden.get_offsets()), len(shown.get_offsets())) == (1, 3)
    chosen = found.trace.count[0, 1]
    assert ring.get_offsets()[0].tolist() == pytest.approx(
        [int(chosen), float(found.trace.costs[0, 1].min())]
    )
    assert matplotlib.colors.to_hex(hidden.get_facecolor()[0]) == "#ffffff"
