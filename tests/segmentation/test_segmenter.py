"""A saved or exported head gives the same masks; tiles; edges; errors are one line."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

import croc
from croc.cli import main
from croc.errors import UserError
from croc.method.photometric import normalize
from croc.segmentation.edges import follow_edges
from croc.segmentation.scores import _starts, score_tiles
from croc.segmentation.segmenter import argmax_upsampled, load_segmenter, save_segmenter
from croc.weights.open import open_backbone
from tests.segmentation.heads import make_head

IMAGE = np.random.default_rng(0).integers(0, 256, (41, 57, 3), np.uint8)


@pytest.mark.parametrize(
    ("weights", "kind"),
    [
        ("RUN", "incontext"),
        ("random:RUN", "linear"),
        ("coco-20min", "linear"),
        ("random:vit_base_patch16_clip_224", "linear"),  # normalizes pooled tokens
        ("random:eva02_tiny_patch14_224", "incontext"),
        ("random:resnet18", "linear"),
    ],
)
def test_saved_head_gives_the_same_scores(run: Path, weights: str, kind: str, tmp_path: Path):
    segmenter = make_head(weights.replace("RUN", str(run)), kind)
    save_segmenter(segmenter, tmp_path / "head", {"made of": "noise"})
    moved = (tmp_path / "head").rename(tmp_path / "elsewhere")
    again = load_segmenter(moved)
    images = normalize(torch.rand(2, 3, segmenter.image_px, segmenter.image_px))
    assert torch.equal(again.scores(images), segmenter.scores(images))
    assert np.array_equal(again.class_map(IMAGE), segmenter.class_map(IMAGE))
    assert (again.classes, again.colors) == (segmenter.classes, segmenter.colors)
    assert (again.kind, again.backbone.name) == (kind, segmenter.backbone.name)
    assert json.loads((moved / "head.json").read_text())["facts"] == {"made of": "noise"}
    reopened = open_backbone(str(moved / "backbone.safetensors"))
    assert torch.equal(reopened.features(images), segmenter.backbone.features(images))


def test_head_of_a_published_file_is_self_contained(tmp_path: Path):
    vit: Any = open_backbone("random:vit_small_patch16_224").vit
    torch.save({"teacher": vit.state_dict()}, tmp_path / "published.pth")
    segmenter = make_head(str(tmp_path / "published.pth"), "linear")
    save_segmenter(segmenter, tmp_path / "head", {})
    (tmp_path / "published.pth").unlink()
    images = torch.rand(1, 3, 64, 96)
    assert torch.equal(load_segmenter(tmp_path / "head").scores(images), segmenter.scores(images))


@pytest.mark.parametrize("size", [(30, 20), (3, 40), (1, 1), (90, 7)])
def test_argmax_in_bands_equals_argmax(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    scores = torch.randn(9, 4, 5)
    scores[7] = scores[2]  # the first of equal scores wins
    whole = F.interpolate(scores[None], size=size, mode="bilinear")[0].argmax(dim=0).numpy()
    assert np.array_equal(argmax_upsampled(scores, size), whole)
    monkeypatch.setattr("croc.segmentation.segmenter.MAX_BAND", 2 * 9 * size[1])
    monkeypatch.setattr("croc.segmentation.segmenter.MAX_WIDE", 3 * 9 * size[1])
    assert np.array_equal(argmax_upsampled(scores, size), whole)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_segmenter(make_head(), tmp_path / "head", {})
    return tmp_path / "head"


def test_segment_gives_maps_of_the_photographs_sizes(saved: Path):
    tensor = torch.from_numpy(IMAGE).permute(2, 0, 1)
    maps = croc.segment([tensor, tensor[:, :20] / 255], saved, device="cpu")
    assert [class_map.shape for class_map in maps] == [(41, 57), (20, 57)]
    assert all(class_map.dtype == np.uint8 for class_map in maps)
    segmenter = croc.load_segmenter(saved)
    assert np.array_equal(maps[0], segmenter.class_map(IMAGE))
    assert np.array_equal(maps[0], croc.segment(tensor, segmenter)[0])


def edit(folder: Path, **changes: object) -> None:
    file = folder / "head.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_classes_and_colors_can_be_edited_in_head_json(saved: Path):
    edit(saved, classes=["road", "wall", "sky"], colors=["#000000", "#ff0000", "0000ff"])
    segmenter = load_segmenter(saved)
    assert segmenter.classes == ("road", "wall", "sky")
    assert segmenter.colors == ((0, 0, 0), (255, 0, 0), (0, 0, 255))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2, but this version reads format 1"),
        ({"classes": ["a", "b"]}, "2 classes and 3 colors, but the head has 3 classes"),
        ({"colors": ["#000000", "#0000", "#111111"]}, "colors must have the form #rrggbb"),
        ({"kind": "forest"}, "cannot be read"),
        ({"image_px": 50}, "use 48 or 64 px"),
        ({"blocks": 99}, "has 12 blocks, not 99"),
        ({"backbone": {"name": "other", "hash": "0"}}, "is not the backbone"),
    ],
)
def test_invalid_head_json_is_refused(changes: dict[str, object], message: str, saved: Path):
    edit(saved, **changes)
    with pytest.raises(UserError, match=message) as error:
        load_segmenter(saved)
    assert "\n" not in str(error.value)


def test_failed_save_leaves_no_files(tmp_path: Path):
    segmenter = make_head()
    (tmp_path / "taken/notes").mkdir(parents=True)
    with pytest.raises(UserError, match="already exists and will not be overwritten"):
        save_segmenter(segmenter, tmp_path / "taken", {})
    segmenter.backbone.record = None
    with pytest.raises(UserError, match="cannot be stored"):
        save_segmenter(segmenter, tmp_path / "head", {})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_foreign_head_cannot_name_other_files(tmp_path: Path):
    segmenter = make_head()
    record = segmenter.backbone.record
    record.options["checkpoint_path"] = "/etc/passwd"
    save_segmenter(segmenter, tmp_path / "head", {})
    with pytest.raises(UserError, match="its options name other files"):
        load_segmenter(tmp_path / "head")


SIZES = ((4, 4), (3, 7), (9, 2))

WITHOUT_CROC = """
import json, sys, torch
files = {"metadata.json": ""}
module = torch.export.load("head.pt2", extra_files=files).module()
inputs = torch.load("inputs.pt")
torch.save([module(each) for each in inputs], "outputs.pt")
assert json.loads(files["metadata.json"])["classes"] == ["class 0", "class 1", "class 2"]
assert "croc" not in sys.modules and "timm" not in sys.modules
"""


HALVES = "timm:vit_tiny_patch16_224@FILE"
"""Whose weights are for a mean and a deviation of a half."""


@pytest.mark.parametrize(("weights", "blocks"), [("RUN", 2), ("random:resnet18", 1), (HALVES, 1)])
def test_exports_predict_the_same_classes(run: Path, weights: str, blocks: int, tmp_path: Path):
    ort = pytest.importorskip("onnxruntime")
    head = tmp_path / "head"
    file = tmp_path / "w.pth"
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), file)
    weights = weights.replace("RUN", str(run)).replace("FILE", str(file))
    save_segmenter(make_head(weights, blocks=blocks), head, {})
    for name in ("head.onnx", "head.pt2"):
        assert main(["segment", "export", str(head), "--to", str(tmp_path / name)]) == 0
    segmenter = load_segmenter(head)
    unit = segmenter.backbone.stride_px
    inputs = [torch.rand(2, 3, unit * rows, unit * columns) for rows, columns in SIZES]
    expected = []
    for images in inputs:
        scores = segmenter.scores(segmenter.backbone.normalize(images))
        expected.append(np.stack([argmax_upsampled(each, images.shape[2:]) for each in scores]))
    session = ort.InferenceSession(str(tmp_path / "head.onnx"))
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(segmenter.classes)
    torch.save(inputs, tmp_path / "inputs.pt")
    command = [sys.executable, "-c", WITHOUT_CROC]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for images, classes, loaded in zip(inputs, expected, torch.load(tmp_path / "outputs.pt")):
        (onnx,) = session.run(None, {"images": images.numpy()})
        assert (onnx.dtype, onnx.shape) == (np.uint8, classes.shape)
        assert (onnx == classes).mean() >= 0.999
        assert (loaded.numpy() == classes).mean() >= 0.999
        assert len(np.unique(classes)) > 1


@pytest.mark.parametrize(("count", "side"), [(1, 1), (7, 7), (8, 7), (40, 7), (41, 8), (300, 1)])
def test_tiles_overlap_and_cover(count: int, side: int):
    starts = _starts(count, side)
    assert starts[0] == 0
    assert starts[-1] + side == count
    overlap = -(-side // 4) if side > 1 else 0
    assert all(0 < b - a <= side - overlap for a, b in pairwise(starts))


def test_one_tile_equals_the_whole_image_and_overlapping_tiles_are_blended():
    segmenter = make_head()
    image = np.random.default_rng(0).integers(0, 256, (64, 112, 3), np.uint8)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
    whole = segmenter.scores(normalize(pixels))[0]
    torch.testing.assert_close(score_tiles(image, segmenter, 112, 2), whole)
    tiled = score_tiles(image, segmenter, 48, 2)
    assert tiled.shape == whole.shape
    corner = segmenter.scores(normalize(pixels[..., :48, :48]))[0]
    torch.testing.assert_close(tiled[:, 0, 0], corner[:, 0, 0])  # in one tile only
    below = segmenter.scores(normalize(pixels[..., 16:64, :48]))[0]
    blend = (2 * corner[:, 1, 0] + 1 * below[:, 0, 0]) / 3  # weighted by distance to the border
    torch.testing.assert_close(tiled[:, 1, 0], blend)
    assert score_tiles(np.resize(image, (5, 203, 3)), segmenter, 32, 3).shape == (3, 1, 13)


@pytest.mark.parametrize("size", [(96, 128), (600, 900)])
def test_masks_follow_edges(size: tuple[int, int]):
    truth = np.zeros(size, np.uint8)
    truth[:, int(0.45 * size[1]) :] = 1  # between the centers of two patches
    noise = np.random.default_rng(0).integers(-8, 8, (*size, 3))
    image = np.clip(60 + 130 * truth[..., None].astype(int) + noise, 0, 255).astype(np.uint8)
    scores = torch.tensor([4.0] * 12 + [1.0] + [0.0] * 15).expand(21, 28)
    scores = torch.stack([scores, 4 - scores])
    plain, guided = argmax_upsampled(scores, size), follow_edges(scores, image)
    assert guided.shape == size
    assert guided.dtype == np.uint8
    assert (guided != truth).mean() < 0.2 * (plain != truth).mean()
