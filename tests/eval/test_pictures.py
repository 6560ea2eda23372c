"""Pictures of predictions: figures, and DAVIS' palette."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from croc.eval.features import Example
from croc.eval.pictures import (
    class_colors,
    segmentation_figure,
    voc_palette,
)


def test_the_palette_is_that_of_pascal_voc():
    colors = np.array(voc_palette()).reshape(256, 3).tolist()
    known = {1: [128, 0, 0], 3: [128, 128, 0], 8: [64, 0, 0], 20: [0, 64, 128], 64: [32, 0, 0]}
    assert {index: colors[index] for index in known} == known
    assert len({tuple(color) for color in colors}) == 256


def test_a_figure_shows_image_truth_and_prediction(tmp_path: Path):
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0] = 255
    truth = torch.zeros(20, 30, dtype=torch.long)
    predicted = torch.ones(20, 30, dtype=torch.long)
    path = tmp_path / "figure.png"
    segmentation_figure([Example(image, truth, predicted)] * 2, ("a <b>", "c"), path, "title")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    wanted = [(255, 0, 0), *(np.round(255 * class_colors(2)).astype(int))]
    shares = [(np.abs(pixels - color).max(axis=1) <= 1).mean() for color in wanted]
    assert min(shares) > 0.1
