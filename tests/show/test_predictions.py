"""Pictures of predictions: colours of classes, gray for what is ignored, every example drawn."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from croc.eval.scoring import Example
from croc.eval.video import VideoExample
from croc.lab.show.overlays import paint_objects
from croc.lab.show.predictions import (
    class_colours,
    paint_classes,
    segmentation_figure,
    video_figure,
)


def test_classes_have_colours_of_their_own():
    for count in (2, 13, 150):
        colours = class_colours(count)
        assert colours.shape == (count, 3)
        assert colours.min() >= 0
        assert colours.max() <= 1
        assert len({tuple(np.round(colour, 3)) for colour in colours}) == count


def test_ignored_pixels_are_gray():
    colours = class_colours(3)
    painted = paint_classes(np.array([[0, 2, 255]]), colours)
    assert np.array_equal(painted[0, :2], colours[[0, 2]])
    assert painted[0, 2].tolist() == [0.5, 0.5, 0.5]


def test_a_figure_shows_image_truth_and_prediction(tmp_path: Path):
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0] = 255
    truth = torch.zeros(20, 30, dtype=torch.long)
    predicted = torch.ones(20, 30, dtype=torch.long)
    path = tmp_path / "figure.png"
    segmentation_figure([Example(image, truth, predicted)] * 2, ("a <b>", "c"), path, "title")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    wanted = [(255, 0, 0), *(np.round(255 * class_colours(2)).astype(int))]
    shares = [(np.abs(pixels - colour).max(axis=1) <= 1).mean() for colour in wanted]
    assert min(shares) > 0.1


def test_videos_show_truth_above_prediction(tmp_path: Path):
    frames = np.full((3, 20, 30, 3), 128, np.uint8)
    masks = np.zeros((3, 20, 30), np.uint8)
    masks[:, 5:, 5:] = 1
    path = tmp_path / "video.png"
    video_figure([VideoExample("one", frames, masks, 2 * masks)], path, "title")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    colours = [paint_objects(frames[0], k * masks[0])[-1, -1].astype(int) for k in (1, 2)]
    rows = [np.flatnonzero((np.abs(pixels - c).max(axis=2) <= 1).any(axis=1)) for c in colours]
    assert len(rows[0]) > 50
    assert len(rows[1]) > 50
    assert rows[0].max() < rows[1].min()
