"""Pictures of predictions: figures, overlays decoded again, and DAVIS' palette."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from croc.eval.features import Example
from croc.eval.pictures import (
    OBJECT_COLORS,
    class_colors,
    segmentation_figure,
    voc_palette,
    write_overlay,
)

av = pytest.importorskip("av")

FRAMES, HEIGHT, WIDTH = 5, 60, 80


def test_the_palette_is_that_of_pascal_voc():
    colors = np.array(voc_palette()).reshape(256, 3).tolist()
    known = {1: [128, 0, 0], 3: [128, 128, 0], 8: [64, 0, 0], 20: [0, 64, 128], 64: [32, 0, 0]}
    assert {index: colors[index] for index in known} == known
    assert len({tuple(color) for color in colors}) == 256


def moving_square(start: int) -> np.ndarray:
    masks = np.zeros((FRAMES, HEIGHT, WIDTH), np.uint8)
    for t in range(FRAMES):
        masks[t, 20:40, start + 4 * t : start + 20 + 4 * t] = 2
    return masks


@pytest.mark.parametrize("odd", [0, 1])
def test_an_overlay_plays_the_painted_frames(tmp_path, odd):
    frames = np.full((FRAMES, HEIGHT, WIDTH, 3), 90, np.uint8)[:, odd:, odd:]
    predicted, truth = (moving_square(start)[:, odd:, odd:] for start in (10, 40))
    write_overlay(tmp_path / "x.mp4", frames, predicted, truth)
    with av.open(str(tmp_path / "x.mp4")) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 24
        played = [frame.to_ndarray(format="rgb24") for frame in video.decode(stream)]
    assert [frame.shape for frame in played] == [(HEIGHT, WIDTH, 3)] * FRAMES
    color = OBJECT_COLORS[1] / 2 + 45
    for t, frame in enumerate(played):
        assert frame[5, 5] == pytest.approx([90, 90, 90], abs=8)
        assert frame[30, 20 + 4 * t] == pytest.approx(color, abs=12)
        assert frame[30, 40 + 4 * t - odd].min() > 150  # the truth's edge is white


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
