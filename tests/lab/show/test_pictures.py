"""`croc show`: three kinds of pictures, of which networks; clusters painted over photographs."""

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
from croc.lab.show.clusters import draw_clusters, draw_merging, views_of
from croc.lab.show.features import draw_features, project
from croc.lab.show.figures import OPACITY, PALETTE, paint
from croc.lab.show.look import Look, look_at_run, whole_view
from croc.method.clustering.trace import trace_views
from croc.method.croc import saliency
from croc.method.photometric import unnormalize
from croc.method.views import patch_centers
from croc.weights.export import Export, export


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
    """Of all tiles."""
    figure.draw_without_rendering()
    tiles = [axes for axes in figure.axes if axes.images]
    return [axes._left_title.get_text() for axes in tiles]


@pytest.mark.parametrize(
    "command",
    [
        "clusters --run RUN --whole --image-px 48",
        "features --run RUN --patch 3 4 --shared-pca --heads 1",
        "features --run RUN --columns image clusters --step 0",
        "features --run MAE",
        "merging --weights WEIGHTS",
        "features --weights random:vit_tiny_patch16_224 --image-px 32",
    ],
)
def test_pictures_are_written(
    command: str, run: Path, mae_run: Path, photograph: str, tmp_path: Path, capsys
):
    to, weights = tmp_path / "x.png", tmp_path / "mine.safetensors"
    export(Export(str(run), str(weights)))
    for name, value in {"RUN": run, "MAE": mae_run, "WEIGHTS": weights}.items():
        command = command.replace(name, str(value))
    kind, *options = command.split()
    assert main(["show", kind, photograph, "--to", str(to), *options]) == 0
    assert capsys.readouterr().out == f"{to}\n"
    with Image.open(to) as picture:
        assert min(picture.size) > 200


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
    curve: Any = figure.axes[-2]
    costs, ring = curve.lines  # a ring around the chosen K
    np.testing.assert_allclose(costs.get_ydata(), trace.costs[0, 0], rtol=1e-6)
    assert ring.get_xdata() == [trace.count[0, 0]]


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
    heads = [f"attention, head {number}" for number in range(3)]
    assert texts[:6] == ["image", "PCA", "cosine to the patch", *heads]
    assert len(texts) == 2 * 6
    options = ShowFeatures(columns=("clusters", "image", "pca"), heads=(0, 2))
    texts = labels(draw_features(look, options))  # of the two bundled photographs
    assert texts[:4] == ["clusters, head 0", "clusters, head 2", "image", "PCA"]
    assert len(texts) == 2 * 4


GRAY = torch.full((1, 3, 32, 64), 0.5)
BOTH = torch.tensor([True, True])
# The left half of a 4 × 8 grid belongs to cluster 0, the right half to cluster 1.
HALVES = torch.nn.functional.one_hot((torch.arange(32) % 8 >= 4).long(), 2).float()[None]


def painted(
    pixels: torch.Tensor, shares: torch.Tensor, valid: torch.Tensor, numbers: tuple[int, ...]
) -> torch.Tensor:
    (picture,) = paint(pixels, shares, valid, (4, 8), torch.tensor(numbers))
    return torch.from_numpy(picture)


def test_clusters_have_their_colors_and_soft_edges():
    picture = painted(GRAY, HALVES, BOTH, (3, 5))
    assert picture.shape == (160, 320, 3)
    over = OPACITY * PALETTE + (1 - OPACITY) * 0.5
    torch.testing.assert_close(picture[80, 20], over[3])
    torch.testing.assert_close(picture[80, 300], over[5])
    assert picture[80, 120:200].unique(dim=0).shape[0] > 10
