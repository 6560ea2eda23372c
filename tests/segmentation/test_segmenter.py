"""A saved head reopens as the same segmenter, or fails with a one-line error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import croc
from croc.errors import UserError
from croc.eval.features import Moments
from croc.eval.linear import Layer
from croc.method.photometric import normalize
from croc.segmentation.segmenter import (
    MAX_LOGITS,
    argmax_upsampled,
    fold_standardization,
    load_segmenter,
    save_segmenter,
)
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


def test_folded_standardization_gives_the_same_logits():
    features, moments = 100 + 3 * torch.randn(2, 12, 5, 7), Moments()
    moments.add(features)
    layer = Layer(12, 4, moments).requires_grad_(False)
    expected = layer.linear((features - layer.mean) / layer.deviation)
    torch.testing.assert_close(layer(features), expected, atol=1e-4, rtol=1e-5)
    folded = fold_standardization(layer)(features)
    torch.testing.assert_close(folded, expected, atol=1e-4, rtol=1e-5)


def test_argmax_in_chunks_equals_argmax(monkeypatch: pytest.MonkeyPatch):
    scores = torch.randn(9, 4, 5)
    scores[7] = scores[2]  # the first of equal scores wins
    whole = argmax_upsampled(scores, (30, 20))
    monkeypatch.setattr("croc.segmentation.segmenter.MAX_LOGITS", 2 * 30 * 20)
    assert MAX_LOGITS > 9 * 30 * 20
    assert np.array_equal(argmax_upsampled(scores, (30, 20)), whole)
    assert 7 not in whole


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
    assert record is not None
    record.options["checkpoint_path"] = "/etc/passwd"  # pyright: ignore
    save_segmenter(segmenter, tmp_path / "head", {})
    with pytest.raises(UserError, match="its options name other files"):
        load_segmenter(tmp_path / "head")
