"""Exported networks predict the same classes, without this package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from croc.cli import main
from croc.segmentation.segmenter import argmax_upsampled, load_segmenter, save_segmenter
from tests.segmentation.heads import make_head

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
