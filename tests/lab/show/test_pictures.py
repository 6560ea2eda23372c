"""`croc show`: the three kinds of pictures, of which networks, and bad input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.decomposition import PCA

from croc.cli import main
from croc.config import ClusterConfig
from croc.lab.show import ShowClusters, ShowFeatures, ShowMerging
from croc.lab.show.clusters import draw_clusters, draw_merging, follow_colors, views_of
from croc.lab.show.features import draw_features, project
from croc.lab.show.look import Look, look_at_run, whole_view
from croc.method.clustering.trace import trace_views
from croc.method.croc import saliency
from croc.method.photometric import unnormalize
from croc.method.views import patch_centers


@pytest.fixture(scope="module")
def look(run: Path) -> Look:
    return look_at_run(run)


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 × 40: a disc on two halves."""
    y, x = np.mgrid[:40, :60]
    pixels = np.where((x < 30)[..., None], (200, 80, 40), (40, 90, 200))
    pixels[(x - 30) ** 2 + (y - 20) ** 2 < 100] = (240, 240, 200)
    path = tmp_path_factory.mktemp("photographs") / "disc.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("photographs") / "tall.png"
    Image.new("RGB", (10, 200)).save(path)
    return str(path)


def labels(figure: Figure) -> list[str]:
    """Of all tiles, after a check that nothing is clipped and no text overlaps."""
    figure.draw_without_rendering()
    tiles = [axes for axes in figure.axes if axes.images]
    titles = [axes._left_title for axes in tiles]  # pyright: ignore[reportAttributeAccessIssue]
    texts = [text.get_window_extent() for text in [*figure.texts, *titles] if text.get_text()]
    for box in [*texts, *(axes.get_tightbbox() for axes in figure.axes)]:
        assert box is None or min(box.x0, box.y0) >= -1
        assert box is None or (box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1)
    for number, text in enumerate(texts):
        assert not any(text.overlaps(other) for other in texts[:number])
        assert not any(text.overlaps(axes.bbox) for axes in tiles)
    return [title.get_text() for title in titles]


@pytest.mark.parametrize(
    "command",
    [
        "clusters --whole --image-px 48",
        "features --patch 3 4 --shared-pca --heads 1",
        "features --columns image clusters --step 0",
    ],
)
def test_pictures_are_written(command: str, run: Path, photograph: str, tmp_path: Path, capsys):
    to = tmp_path / "x.png"
    kind, *options = command.split()
    assert main(["show", kind, photograph, "--run", str(run), "--to", str(to), *options]) == 0
    assert capsys.readouterr().out == f"{to}\n"
    with Image.open(to) as picture:
        assert min(picture.size) > 200


def test_weights_are_drawn(run: Path, photograph: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "mine.safetensors"]) == 0
    assert main(["show", "merging", photograph, "--weights", "mine.safetensors"]) == 0
    assert Path("mine-merging.png").is_file()
    random = ["--weights", "random:vit_tiny_patch16_224", "--to", "random.png"]
    assert main(["show", "features", photograph, *random, "--image-px", "32"]) == 0


@pytest.mark.parametrize(
    ("height", "width", "shape"),
    [(40, 60, (40, 64)), (60, 40, (64, 40)), (3, 400, (8, 64)), (1, 1, (64, 64))],
)
def test_whole_image_is_resized_to_whole_patches(height: int, width: int, shape: tuple):
    views = whole_view(np.full((height, width, 3), 90, np.uint8), 64, 8)
    torch.testing.assert_close(unnormalize(views.pixels), torch.full((1, 1, 3, *shape), 90 / 255))
    middle = torch.tensor([width, height]) / 2 / max(width, height)
    torch.testing.assert_close(views.positions.mean(dim=2)[0, 0], middle)
    if height == width:  # as of a crop of everything
        boxes, sizes = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), torch.tensor([[1, 1]])
        expected = patch_centers(boxes, torch.tensor([[False]]), sizes, 64, 8)
        torch.testing.assert_close(views.positions, expected)


def test_picture_of_clusters(look: Look, photograph: str, tall: str):
    images = (photograph, tall, photograph)
    texts = labels(draw_clusters(look, ShowClusters(images=images, heads=(0, 2))))
    assert len(texts) == 3 * 2 * 3
    assert [text for text in texts if "augmented" in text] == ["augmented views"] * 3
    figure = draw_clusters(look, ShowClusters(images=images, heads=(1,), whole=True, image_px=64))
    assert labels(figure).count("photograph") == 3
    figure = draw_clusters(look, ShowClusters())  # four of the run's own images, all three heads
    assert len(labels(figure)) == 4 * 2 * 4


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_picture_of_merging(variant: Any, look: Look, photograph: str):
    cluster = ClusterConfig(variant=variant, k_start=12)
    look = replace(look, config=replace(look.croc, cluster=cluster))
    whole = variant == "released"
    options = ShowMerging(images=(photograph,), heads=(0, 2), whole=whole)
    figure = draw_merging(look, options)
    texts = labels(figure)
    ((views, keys),) = views_of(look, options)
    tokens = look.backbone.forward_tokens(views.pixels, cluster.tokens)
    places = (tokens.heads, views.positions, saliency(tokens, cluster))
    trace = trace_views(*places, cluster, keys=keys)
    for k, step in zip(range(8, 1, -1), trace.steps[-7:]):
        shares = step.assignments[:, 0, 0] / step.assignments[:, 0, 0].sum(dim=-1, keepdim=True)
        assert f"K {k} · share {shares.amax(dim=-1).mean():.2f}" in texts
    # The curve of the first head's costs, with a ring around the chosen K.
    curve: Any = figure.axes[-2]
    costs, ring = curve.lines
    np.testing.assert_array_equal(costs.get_xdata(), range(12, 1, -1))
    np.testing.assert_allclose(costs.get_ydata(), trace.costs[0, 0], rtol=1e-6)
    assert ring.get_xdata() == [trace.count[0, 0]]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_merging_changes_one_color_per_step(variant: Any, look: Look, photograph: str):
    config = ClusterConfig(variant=variant, k_start=8)
    ((views, keys),) = views_of(look, ShowClusters(images=(photograph,)))
    tokens = look.backbone.forward_tokens(views.pixels, "values")
    places = (tokens.heads, views.positions, saliency(tokens, config))
    trace = trace_views(*places, config, keys=keys)
    for head in range(3):
        colors, chosen = follow_colors(trace, head), int(trace.count[0, head])
        assert colors[chosen] == list(range(chosen))
        for k in range(3, 9):
            assert len(set(colors[k])) == k
            assert len(set(colors[k]) - set(colors[k - 1])) == 1
            # What is not merged keeps its color.
            into = trace.at(k - 1).into
            assert into is not None
            targets = into[0, head].tolist()
            alone = [c for c, target in enumerate(targets) if targets.count(target) == 1]
            assert all(colors[k][c] == colors[k - 1][targets[c]] for c in alone)


def make_tokens(count: int, seed: int = 0) -> torch.Tensor:
    scales = torch.tensor([9.0, 5.0, 3.0, *([0.5] * 9)])
    return torch.randn(count, 12, generator=torch.manual_seed(seed)) * scales


def test_pca_equals_scikit_learn():
    first, second = make_tokens(120), make_tokens(80, 1) + 4
    tokens = torch.cat([first, second])
    pca: Any = PCA(3, svd_solver="full").fit(tokens.double().numpy())
    largest = np.abs(pca.components_).argmax(axis=1)
    signs = np.sign(pca.components_[np.arange(3), largest])
    expected = pca.transform(tokens.double().numpy()) * signs
    low, high = np.quantile(expected, [0.02, 0.98], axis=0)
    expected = ((expected - low) / (high - low)).clip(0, 1)
    together = project([first, second])  # colors have one meaning in both
    assert [len(colors) for colors in together] == [120, 80]
    np.testing.assert_allclose(torch.cat(together).numpy(), expected, atol=1e-5)
    for few in (make_tokens(1), make_tokens(2), torch.ones(2, 12)):
        assert torch.isfinite(project([few])[0]).all()


def test_picture_of_features(look: Look, photograph: str, tall: str):
    texts = labels(draw_features(look, ShowFeatures(images=(photograph, tall))))
    assert len(texts) == 2 * (3 + 3)
    assert texts[:4] == ["image", "PCA", "cosine to the patch", "attention, head 0"]
    options = ShowFeatures(columns=("clusters", "image", "pca"), heads=(0, 2))
    texts = labels(draw_features(look, options))  # of the two bundled photographs
    assert texts[:4] == ["clusters, head 0", "clusters, head 2", "image", "PCA"]
    assert len(texts) == 2 * 4


def test_other_methods_have_features(mae_run: Path, photograph: str, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "features", photograph, "--run", str(mae_run)]) == 0
