"""Colours that all readers can tell apart, clusters over photographs, and nothing clipped."""

from dataclasses import replace
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
import torch

from croc.errors import UserError
from croc.lab.show import figures
from croc.lab.show.figures import (
    HATCHING,
    OPACITY,
    PALETTE,
    Found,
    by_size,
    choose_heads,
    cluster_figure,
    paint,
    picture_path,
)
from croc.method.types import Clusters

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            (0.152286, 1.052583, -0.204868),
            (0.114503, 0.786281, 0.099216),
            (-0.003882, -0.048116, 1.051998),
        ]
    ),
    "deuteranopia": np.array(
        [
            (0.367322, 0.860646, -0.227968),
            (0.280085, 0.672501, 0.047413),
            (-0.011820, 0.042940, 0.968881),
        ]
    ),
}
TO_XYZ = np.array(
    [
        (0.4124564, 0.3575761, 0.1804375),
        (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    ]
)


def to_lab(srgb: np.ndarray, vision: str) -> np.ndarray:
    """CIE Lab under D65 of what a reader sees."""
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ VISION[vision].T, 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def nearest(colours: np.ndarray, vision: str) -> float:
    """ΔE (1976) of the two that are most alike."""
    lab = to_lab(colours, vision)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return float(apart[np.triu_indices(len(lab), 1)].min())


def test_the_measure_knows_black_and_white_and_what_dichromats_confuse():
    ends = np.array([(0.0, 0, 0), (1, 1, 1)])
    for vision in VISION:
        assert nearest(ends, vision) == pytest.approx(100, abs=0.1)
    confused = np.array([(148, 190, 60), (230, 159, 0)]) / 255
    assert nearest(confused, "normal") > 40 > 10 > nearest(confused, "protanopia")


@pytest.mark.parametrize(
    ("vision", "least"), [("normal", 38), ("protanopia", 25), ("deuteranopia", 25)]
)
def test_twelve_colours_are_told_apart(vision: str, least: float):
    assert len(PALETTE) == 12
    assert nearest(PALETTE.double().numpy(), vision) > least


@pytest.mark.parametrize("vision", VISION)
def test_they_are_told_apart_over_a_gray_photograph_too(vision: str):
    over = OPACITY * PALETTE.double().numpy() + (1 - OPACITY) * 0.5
    assert nearest(over, vision) > 18
    assert nearest(over[:8], vision) > 21


def halves(rows: int, columns: int) -> torch.Tensor:
    """The left half of a grid to cluster 0, the right one to cluster 1."""
    right = (torch.arange(columns) >= columns // 2).expand(rows, -1)
    return torch.nn.functional.one_hot(right.long(), 2).float().flatten(0, 1)


def test_clusters_have_their_colours_and_soft_edges():
    gray = torch.full((3, 32, 64), 0.5)
    painted = paint(gray, halves(4, 8), torch.tensor([True, True]), (4, 8), PALETTE[[3, 5]])
    assert painted.shape == (3, 160, 320)
    over = OPACITY * PALETTE + (1 - OPACITY) * 0.5
    torch.testing.assert_close(painted[:, 80, 20], over[3])
    torch.testing.assert_close(painted[:, 80, 300], over[5])
    edge = painted[:, 80, 120:200].unique(dim=1)
    assert edge.shape[1] > 10


def test_colours_mix_in_proportion_to_the_shares():
    shares = torch.tensor([[0.65, 0.35]]).expand(16, -1)
    painted = paint(torch.full((3, 32, 32), 0.5), shares, torch.ones(2, dtype=torch.bool))
    tint = 0.65 * PALETTE[0] + 0.35 * PALETTE[1]
    torch.testing.assert_close(painted[:, 100, 100], OPACITY * tint + (1 - OPACITY) * 0.5)


def test_only_pruned_clusters_are_hatched():
    bright = torch.ones(3, 32, 32)
    painted = paint(bright, halves(4, 4), torch.tensor([True, False]))
    dark = (painted == HATCHING).all(dim=0)
    assert not dark[:, :155].any()
    assert 0.1 < dark[:, 165:].float().mean() < 0.4


def test_tokens_of_unequal_total_count_alike():
    """`released` gives a token's share of its cluster, not of the token."""
    weights = torch.linspace(0.001, 0.1, 16)[:, None]
    gray, valid = torch.full((3, 32, 32), 0.5), torch.tensor([True, True])
    torch.testing.assert_close(
        paint(gray, weights * halves(4, 4), valid), paint(gray, halves(4, 4), valid)
    )


def test_the_largest_cluster_comes_first():
    labels = torch.tensor([[2, 2, 0, 1], [2, 0, 2, 2]])
    assert by_size(torch.nn.functional.one_hot(labels, 4).float()).tolist() == [1, 2, 0, 3]


def make_found(heads: int, views: int, grid: tuple[int, int]) -> Found:
    n = grid[0] * grid[1]
    shares = torch.rand(views, 1, heads, n, 12, generator=torch.manual_seed(0)).softmax(-1)
    valid = torch.ones(1, heads, 12, dtype=torch.bool)
    count = torch.full((1, heads), 12)
    clusters = Clusters(shares, valid, torch.zeros(1, heads), count)
    return Found(torch.rand(views, 3, 8 * grid[0], 8 * grid[1]), grid, clusters)


def assert_nothing_clipped(figure: matplotlib.figure.Figure) -> None:
    """Every text lies on the page, and none on another or on a picture."""
    figure.draw_without_rendering()
    page = figure.bbox
    texts = [text.get_window_extent() for text in figure.texts]
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        texts.extend(text.get_window_extent() for text in axes.texts)
        assert box.x0 >= page.x0 - 1
        assert box.y0 >= page.y0 - 1
        assert box.x1 <= page.x1 + 1
        assert box.y1 <= page.y1 + 1
    for i, text in enumerate(texts):
        assert text.x0 >= 0
        assert text.y0 >= 0
        assert text.x1 <= page.x1
        assert text.y1 <= page.y1
        for other in texts[:i]:
            assert not text.overlaps(other)
        for axes in figure.axes:
            assert not text.overlaps(axes.bbox)


@pytest.mark.parametrize(("images", "views", "heads"), [(3, 2, 2), (1, 1, 12), (3, 1, 1)])
def test_a_picture_of_clusters_clips_nothing(
    images: int, views: int, heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: kept.append(figure))
    grids = [(4, 4), (3, 6), (6, 2)] if views == 1 else [(4, 4)] * images
    found = [make_found(heads, views, grid) for grid in grids[:images]]
    cluster_figure(found, range(heads), tmp_path / "x.png", "a run, step 1,000: values, K from 12")
    (figure,) = kept
    assert len(figure.axes) == images * views * (heads + 1)
    assert_nothing_clipped(figure)


def test_every_head_is_labelled_with_its_mean_largest_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: kept.append(figure))
    found = make_found(2, 2, (2, 2))
    shares = torch.zeros_like(found.clusters.assignments)
    shares[:, :, 0, :, 3] = 0.2  # of the head's only cluster, as in `released`
    shares[0, :, 1, :, :2] = torch.tensor([0.9, 0.1])
    shares[1, :, 1, :, :2] = torch.tensor([0.3, 0.7])
    found = replace(found, clusters=replace(found.clusters, assignments=shares))
    cluster_figure([found], range(2), tmp_path / "x.png", "a run")
    labels = [text.get_text() for text in kept[0].texts]
    assert [text for text in labels if "share " in text] == [
        "largest share 1.00",
        "largest share 0.80",
    ]


def test_heads_are_checked():
    assert choose_heads(None, 6) == [0, 1, 2, 3, 4, 5]
    assert choose_heads((), 6, 3) == [0, 1, 2]
    assert choose_heads((5, 0, 5), 6) == [5, 0]
    for asked, count, said in (((6,), 6, "heads 0 to 5"), ((-1,), 2, "0 to 1"), ((1,), 1, "only")):
        with pytest.raises(UserError, match=said):
            choose_heads(asked, count)


def test_where_a_picture_may_go(tmp_path: Path):
    (tmp_path / "folder.png").mkdir()
    assert picture_path(tmp_path / "a.png", None) == tmp_path / "a.png"
    assert picture_path(tmp_path, str(tmp_path / "b.PDF")) == tmp_path / "b.PDF"
    for to, said in (("x", "ending"), ("no/x.png", "no folder"), ("folder.png", "is a folder")):
        with pytest.raises(UserError, match=said):
            picture_path(tmp_path, str(tmp_path / to))
