"""`croc show`: the three kinds of pictures, of which networks, and bad input."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from PIL import Image
from sklearn.decomposition import PCA

from croc.cli import main
from croc.config import ClusterConfig
from croc.lab.show.clusters import draw_clusters
from croc.lab.show.command import ShowClusters, ShowFeatures, ShowMerging
from croc.lab.show.features import draw_features, find_patch, project, stretch
from croc.lab.show.look import Look, look_at_run, whole_view
from croc.lab.show.merging import draw_merging, find_merging, follow_colours
from croc.method.clustering.trace import TraceStep
from croc.method.photometric import unnormalise
from croc.method.views import patch_centres
from croc.photographs import own_photographs
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoint_path, load_checkpoint, untrained
from tests.tiny import tiny_config, tiny_mae


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With checkpoints of the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = tiny_config(folder, keep_every_steps=2, stop_after_steps=4, report=False)
    return pretrain(config, "tiny")


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
    whole = figure.bbox
    texts = [text.get_window_extent() for text in figure.texts]
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert min(box.x0, box.y0, whole.x1 - box.x1, whole.y1 - box.y1) >= -1
        texts.extend(text.get_window_extent() for text in axes.texts)
    for number, text in enumerate(texts):
        assert min(text.x0, text.y0, whole.x1 - text.x1, whole.y1 - text.y1) >= 0
        assert not any(text.overlaps(other) for other in texts[:number])
        assert not any(text.overlaps(axes.bbox) for axes in figure.axes)
    return [text.get_text() for text in figure.texts][1:]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("clusters", "--heads 0 2 --step 2"),
        ("clusters", "--whole --image-px 48"),
        ("merging", "--seed 3 --heads 1"),
        ("features", "--patch 3 4 --together --heads 1"),
        ("features", "--columns photograph clusters --step 0"),
    ],
)
def test_pictures_are_written(
    kind: str,
    options: str,
    run: Path,
    photograph: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    to = tmp_path / "x.png"
    network = ["--run", str(run), "--to", str(to)]
    assert main(["show", kind, photograph, *network, *options.split()]) == 0
    assert capsys.readouterr().out == f"{to}\n"
    with Image.open(to) as picture:
        assert min(picture.size) > 200


def test_exported_weights_are_drawn(
    run: Path, photograph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "mine.safetensors"]) == 0
    for kind in ("merging", "features"):
        arguments = [photograph, "--weights", "mine.safetensors", "--heads", "0"]
        assert main(["show", kind, *arguments]) == 0
        assert Path(f"mine-{kind}.png").is_file()


def test_a_run_opens_the_teacher_of_a_step(run: Path):
    for step, opened in ((None, 4), (2, 2)):
        look = look_at_run(run, step)
        state = load_checkpoint(checkpoint_path(run, opened))["modules"]["teacher"]
        for name, value in look.backbone.state_dict().items():
            assert torch.equal(value, state[f"backbone.{name}"])
        assert look.title == f"tiny, step {opened}"
        assert not look.backbone.training
        assert look.picture("clusters", None) == run / "clusters.png"
    look = look_at_run(run, 0)
    assert look.title == "tiny, untrained"
    expected = untrained(look.config).state_dict()
    for name, value in look.backbone.state_dict().items():
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize(
    ("height", "width", "shape"),
    [(40, 60, (40, 64)), (60, 40, (64, 40)), (3, 400, (8, 64)), (1, 1, (64, 64))],
)
def test_whole_image_is_resized_to_whole_patches(height: int, width: int, shape: tuple):
    views = whole_view(np.full((height, width, 3), 90, np.uint8), 64, 8)
    torch.testing.assert_close(unnormalise(views.pixels), torch.full((1, 1, 3, *shape), 90 / 255))
    middle = torch.tensor([width, height]) / 2 / max(width, height)
    torch.testing.assert_close(views.positions.mean(dim=2)[0, 0], middle)
    if height == width:  # as of a crop of everything
        boxes, sizes = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), torch.tensor([[1, 1]])
        expected = patch_centres(boxes, torch.tensor([[False]]), sizes, 64, 8)
        torch.testing.assert_close(views.positions, expected)


def test_picture_of_clusters(look: Look, photograph: str, tall: str):
    images = (photograph, tall, photograph)
    figure = draw_clusters(look, ShowClusters(images=images, heads=(0, 2)))
    assert len(figure.axes) == 3 * 2 * 3
    texts = labels(figure)
    assert [text for text in texts if "augmented" in text] == ["augmented views"] * 3
    figure = draw_clusters(look, ShowClusters(images=images, heads=(1,), whole=True, image_px=64))
    assert len(figure.axes) == 3 * 2
    assert "photograph" in labels(figure)
    figure = draw_clusters(look, ShowClusters())  # four of the run's own images, all three heads
    assert len(figure.axes) == 4 * 2 * 4
    labels(figure)


def make_step(assigned: list[int], k: int, into: list[int] | None) -> TraceStep:
    assignments = F.one_hot(torch.tensor(assigned), k).float()[None, None, None]
    columns = None if into is None else torch.tensor(into)[None, None]
    valid, cost = torch.ones(1, 1, k, dtype=torch.bool), torch.zeros(1, 1)
    return TraceStep(assignments, valid, cost, None, columns)


def test_merged_cluster_keeps_the_colour_of_the_larger():
    steps = [
        make_step([0, 0, 0, 1, 2, 2, 3, 3, 3, 3], 4, None),
        make_step([0, 0, 0, 1, 1, 1, 2, 2, 2, 2], 3, [0, 1, 1, 2]),  # 2 is larger than 1
        make_step([0] * 3 + [1] * 7, 2, [0, 1, 1]),
    ]
    colours = [each.tolist() for each in follow_colours(steps, 0)]
    assert colours == [[1, 3, 2, 0], [1, 2, 0], [1, 0]]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_picture_of_merging(variant: Any, look: Look, photograph: str):
    cluster = ClusterConfig(variant=variant, k_start=12)
    look = replace(look, config=replace(look.croc, cluster=cluster))
    whole = variant == "released"
    options = ShowMerging(images=(photograph,), heads=(0, 2), whole=whole)
    figure = draw_merging(look, options)
    assert len(figure.axes) == 2 * (8 * (1 if whole else 2) + 1)
    texts = labels(figure)
    _, trace = find_merging(look, options)
    for k, step in zip(range(8, 1, -1), trace.steps[-7:]):
        shares = step.assignments[:, 0, 0] / step.assignments[:, 0, 0].sum(dim=-1, keepdim=True)
        assert f"K {k} · share {shares.amax(dim=-1).mean():.2f}" in texts
    colours = follow_colours(trace.steps, 0)
    assert sorted(colours[0].tolist()) == list(range(12))
    for before, after in pairwise(colours):
        assert len(set(after.tolist())) == len(after) == len(before) - 1
        assert set(after.tolist()) < set(before.tolist())
    # The curve of the first head's costs, with a ring around the chosen K.
    curve: Any = figure.axes[-2]
    np.testing.assert_array_equal(curve.lines[0].get_xdata(), range(12, 1, -1))
    np.testing.assert_allclose(curve.lines[0].get_ydata(), trace.costs[0, 0], rtol=1e-6)
    hidden, shown, ring = curve.collections
    assert (len(hidden.get_offsets()), len(shown.get_offsets())) == (4, 7)
    assert ring.get_offsets()[0][0] == trace.count[0, 0]


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
    together = project([first, second])  # colours have one meaning in both
    assert [len(each) for each in together] == [120, 80]
    np.testing.assert_allclose(torch.cat(together).numpy(), expected, atol=1e-5)
    for few in (make_tokens(1), make_tokens(2), torch.ones(2, 12)):
        assert torch.isfinite(project([few])[0]).all()


def test_outliers_do_not_stretch_the_colours():
    values = torch.linspace(0, 1, 1001)[:, None]
    outlier = torch.cat([values, torch.full((3, 1), 1e6)])
    torch.testing.assert_close(stretch(outlier)[:1001], stretch(values), atol=0.01, rtol=0)


def test_patch_by_pixel():
    size, grid = (40, 60), (5, 8)
    assert find_patch("x", size, grid, None) == (2, 4)
    assert find_patch("x", size, grid, (59.9, 39.9)) == (4, 7)
    assert find_patch("x", size, grid, (7.4, 8.0)) == (1, 0)


def test_picture_of_features(look: Look, photograph: str, tall: str):
    """A row has photograph, PCA, cosine, its scale and three heads."""
    figure = draw_features(look, ShowFeatures(images=(photograph, tall)))
    assert len(figure.axes) == 2 * 7
    assert labels(figure)[:3] == ["photograph", "PCA", "cosine to the patch"]
    assert {Path(name).stem for name in own_photographs()} == {"cat", "coffee"}
    options = ShowFeatures(columns=("clusters", "photograph", "pca"), heads=(0, 2))
    figure = draw_features(look, options)
    assert labels(figure) == ["clusters, head 0", "clusters, head 2", "photograph", "PCA"]
    assert len(figure.axes) == 2 * 4


def test_other_methods_have_features_but_no_clusters(
    photograph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    mae = pretrain(tiny_mae(tmp_path / "mae", stop_after_steps=1, report=False), "tiny-mae")
    assert main(["show", "features", photograph, "--run", str(mae)]) == 0
    for kind in ("clusters", "merging"):
        assert main(["show", kind, photograph, "--run", str(mae)]) == 2
        assert "(tiny-mae) was not trained by CrOC" in capsys.readouterr().err


BAD = [
    ("clusters PHOTO --run RUN --heads 3", "--heads 3: the network has heads 0 to 2"),
    ("clusters PHOTO --run RUN --image-px 64", "--image-px is for --whole"),
    ("clusters PHOTO --run RUN --whole --image-px 8", "gives 1 patches for 5 clusters"),
    ("clusters PHOTO --run RUN --whole --image-px 9999", "--image-px 9999: from 8"),
    ("clusters FOLDER --run RUN", "is a folder"),
    ("clusters no.jpg --run RUN", "no.jpg cannot be read as a photograph: No such file"),
    ("clusters TEXT --run RUN", "text.jpg cannot be read"),
    ("clusters PHOTO", "--run RUN, or --weights NAME"),
    ("clusters PHOTO --run FOLDER", "holds no run"),
    ("clusters PHOTO --run RUN --step 3", "has checkpoints of the steps 0, 2, 4"),
    ("clusters PHOTO --weights x --step 3", "--step is for --run"),
    ("clusters PHOTO --weights no-such", "give a file of croc export"),
    ("merging PHOTO PHOTO --run RUN", "takes one photograph"),
    ("features PHOTO --run RUN --patch 60 3", "--patch 60 3 is outside"),
    ("features PHOTO --run RUN --patch nan 3", "is outside"),
    ("features PHOTO --run RUN --to picture", "give it an ending, one of .png"),
    ("features PHOTO --run RUN --to no/x.png", "there is no folder no"),
    ("features PHOTO --run RUN --to FOLDER/x.png", "is a folder"),
]


@pytest.mark.parametrize(("command", "fragment"), BAD, ids=[command for command, _ in BAD])
def test_bad_input_is_one_line(
    command: str,
    fragment: str,
    run: Path,
    photograph: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "x.png").mkdir()
    names = {"PHOTO": photograph, "FOLDER": tmp_path, "RUN": run, "TEXT": tmp_path / "text.jpg"}
    for name, value in names.items():
        command = command.replace(name, str(value))
    assert main(["show", *command.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fragment in line
