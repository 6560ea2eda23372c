"""Clusters of unlabeled photographs: the head, masks and sheets of examples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.eval.kmeans import nearest
from croc.segmentation import discover as discover_module
from croc.segmentation.discover import fit_clusters
from croc.segmentation.images import ImageFile
from croc.segmentation.options import DiscoverOptions
from croc.segmentation.segmenter import load_segmenter
from tests.segmentation.heads import VIT


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Dark noise on the left half and bright noise on the right; one file is corrupt."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(14):
        noise = np.random.default_rng(number).integers(0, 60, (48, 96, 3), np.uint8)
        noise[:, 48:] += 190
        Image.fromarray(noise).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


def discover(photos: Path, to: Path, *more: str) -> int:
    options = f"--weights {VIT} --to {to} --workers 0 --image-px 96"
    return main(["segment", "discover", str(photos), *options.split(), *more])


def test_two_clusters_separate_dark_from_bright(photos: Path, tmp_path: Path, capsys):
    head = tmp_path / "head"
    assert discover(photos, head, "--classes", "2", "--overlays") == 0
    assert "skipped, cannot be decoded" in capsys.readouterr().out
    segmenter = load_segmenter(head)
    assert segmenter.classes == ("cluster 0", "cluster 1")
    for number in range(14):
        with Image.open(head / "masks" / f"{number}.png") as image:
            mask = np.array(image)
        with Image.open(photos / f"{number}.png") as image:
            assert np.array_equal(segmenter.class_map(np.array(image)), mask)
        left, right = (np.bincount(half.ravel(), minlength=2) for half in np.hsplit(mask, 2))
        assert left.argmax() != right.argmax()
        assert min(left.max(), right.max()) > 0.8 * 48 * 48
    brightness = {}
    for number in range(2):  # each sheet shows examples of its half
        with Image.open(head / "clusters" / f"cluster {number}.png") as sheet:
            brightness[number] = np.median(np.array(sheet.convert("L")))
    bright = int(right.argmax())
    assert brightness[bright] > 2 * brightness[1 - bright]


def test_layer_predicts_the_nearest_centroid():
    """The layer includes standardization and PCA."""
    features = torch.randn(6, 60, 5, 5) * torch.rand(60, 1, 1) + torch.randn(60, 1, 1)
    features = features + 3 * torch.randn(6, 1, 5, 5)
    sample = [ImageFile(Path(f"{number}.png"), str(number)) for number in range(6)]
    options = DiscoverOptions(images=("x",), weights="x", classes=3, to="x")
    layer, examples, shares = fit_clusters(sample, features.half(), options)
    flat = features.half().float().movedim(1, -1).flatten(0, 2)
    scale = flat.std(dim=0)
    _, vectors = torch.linalg.eigh(torch.corrcoef(flat.mT).double())
    directions = vectors[:, -50:].float()
    points = (flat - flat.mean(dim=0)) / scale @ directions
    classes = layer(features.half().float()).argmax(dim=1).flatten()
    centroids = torch.stack([points[classes == k].mean(dim=0) for k in range(3)])
    grid = points.view(6, 5, 5, 50).movedim(-1, 1)
    agree = (nearest(grid, centroids).flatten() == classes).float().mean()
    assert agree > 0.97  # K-means stops near a fixed point
    assert shares == pytest.approx((classes.bincount(minlength=3) / 150).tolist())
    assert all(len({file.name for file, *_ in each}) == len(each) for each in examples)


def test_same_command_adds_missing_masks(photos: Path, tmp_path: Path, capsys):
    head = tmp_path / "head"
    assert discover(photos, head, "--classes", "3") == 0
    first = (head / "masks" / "0.png").stat().st_mtime_ns
    (head / "masks" / "1.png").unlink()
    record = json.loads((head / "head.json").read_text())
    record["classes"] = ["road", "sky", "wall"]  # renamed by a user
    (head / "head.json").write_text(json.dumps(record))
    assert discover(photos, head, "--classes", "3") == 0
    assert (head / "masks" / "1.png").exists()
    assert (head / "masks" / "0.png").stat().st_mtime_ns == first
    assert load_segmenter(head).classes == ("road", "sky", "wall")
    capsys.readouterr()
    for options in (("--classes", "4"), ("--classes", "3", "--restarts", "9")):
        assert discover(photos, head, *options) == 2
        assert "contains a head made with different settings" in capsys.readouterr().err


def test_sample_limited_by_memory_is_random(photos: Path, tmp_path: Path, monkeypatch):
    sampled: list[str] = []

    def note(sample: list[ImageFile], *rest: Any) -> Any:
        sampled.extend(file.name for file in sample)
        return fit_clusters(sample, *rest)

    monkeypatch.setattr(discover_module, "fit_clusters", note)
    monkeypatch.setattr(discover_module, "SAMPLE_BYTES", 1)  # of the first batch only
    assert discover(photos, tmp_path / "head", "--classes", "2", "--batch", "5") == 0
    assert len(sampled) == 5
    assert sorted(sampled) != sorted(path.stem for path in photos.iterdir())[:5]
