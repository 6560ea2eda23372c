"""Segmentation heads with random weights, on any backbone."""

import torch
from torch import nn

from croc.eval.incontext import Memory
from croc.segmentation.segmenter import Segmenter, default_colors
from croc.weights.open import open_backbone

VIT = "random:vit_tiny_patch16_224"


def make_head(
    weights: str = VIT, kind: str = "linear", classes: int = 3, blocks: int = 1
) -> Segmenter:
    backbone = open_backbone(weights).float()
    image_px = 4 * backbone.stride_px
    with torch.random.fork_rng():
        torch.manual_seed(0)
        width = backbone.features(torch.zeros(1, 3, image_px, image_px), blocks).shape[1]
        if kind == "linear":
            head = nn.Conv2d(width, classes, 1).eval().requires_grad_(False)
        else:
            features = torch.nn.functional.normalize(torch.randn(20, width))
            histograms = torch.rand(20, classes).softmax(dim=1)
            head = Memory(features, histograms, neighbors=5, temperature=0.1)
    names = tuple(f"class {number}" for number in range(classes))
    return Segmenter(backbone, head, names, default_colors(classes), image_px, blocks)
