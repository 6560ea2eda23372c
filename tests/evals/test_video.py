"""Label propagation against loops, and whole videos with a known answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from croc.evals.video import (
    VideoConfig,
    evaluate_video,
    frame_size,
    harden,
    neighbourhood,
    propagate,
    segment_video,
)
from croc.evals.videos import Video, open_videos

CPU = torch.device("cpu")


def naive_propagate(features, sources, radius, best, temperature):
    _, rows, columns = features.shape
    objects = sources[0][1].shape[0]
    soft = torch.zeros(objects, rows, columns)
    for y in range(rows):
        for x in range(columns):
            votes = []
            for source, labels in sources:
                for v in range(max(0, y - radius), min(rows, y + radius + 1)):
                    for u in range(max(0, x - radius), min(columns, x + radius + 1)):
                        cosine = float((features[:, y, x] * source[:, v, u]).sum())
                        votes.append((math.exp(cosine / temperature), labels[:, v, u]))
            votes = sorted(votes, key=lambda vote: -vote[0])[:best]
            total = sum(weight for weight, _ in votes)
            soft[:, y, x] = sum(weight / total * label for weight, label in votes)
    return soft


@pytest.mark.parametrize("radius", [1, 2, 12])
def test_propagation_equals_the_loops(radius: int):
    generator = torch.Generator().manual_seed(0)
    config = VideoConfig(radius=radius, best=3)

    def unit() -> Tensor:
        return F.normalize(torch.randn(6, 4, 5, generator=generator), dim=0)

    sources = [(unit(), torch.rand(3, 4, 5, generator=generator)) for _ in range(3)]
    features = unit()
    got = propagate(features, sources, neighbourhood(4, 5, radius, CPU), config)
    expected = naive_propagate(features, sources, radius, 3, 0.1)
    torch.testing.assert_close(got, expected)


def test_frames_are_resized_as_the_protocol_says():
    assert frame_size(480, 854, 480) == (480, 832)
    assert frame_size(854, 480, 480) == (832, 480)
    assert frame_size(1080, 1920, 480) == (480, 832)
    assert frame_size(96, 96, 480) == (480, 448)


class Sliding:
    """A bright square on a dark ground moves eight pixels to the right with each frame."""

    def __len__(self) -> int:
        return 5

    def has_mask(self, t: int) -> bool:
        return True

    def read_mask(self, t: int) -> np.ndarray:
        mask = np.zeros((64, 128), np.uint8)
        mask[16:48, 16 + 8 * t : 48 + 8 * t] = 1
        return mask

    def read_frame(self, t: int) -> np.ndarray:
        return np.repeat((40 + 170 * self.read_mask(t))[..., None], 3, axis=2)


class Brightness:
    """Features that tell bright from dark, and nothing else."""

    name = "brightness"
    stride_px = 8

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        mean = F.avg_pool2d(images, 8).mean(dim=1, keepdim=True)
        return torch.cat([mean, mean.new_ones(1).expand_as(mean)], dim=1)


CONFIG = VideoConfig(short_px=64)


def test_a_sliding_square_is_followed():
    video = Video("sliding", Sliding())
    found = segment_video(Brightness(), video, CONFIG, CPU)
    assert found.shape == (5, 64, 128)
    assert np.array_equal(found[0], video.read_mask(0))
    scores = evaluate_video(Brightness(), (video,), CONFIG, CPU)
    assert scores.means["J"] > 0.75
    assert scores.means["J&F"] == pytest.approx((scores.means["J"] + scores.means["F"]) / 2)


def test_votes_do_not_come_from_beyond_the_radius():
    """With a radius of 0 the square cannot move from patch to patch."""
    found = segment_video(Brightness(), Video("s", Sliding()), replace(CONFIG, radius=0), CPU)
    assert np.array_equal(found[4] > 0, found[1] > 0)


def test_hardening_scales_each_object_by_itself():
    soft = torch.tensor([[[0.9, 0.6]], [[0.1, 0.4]]])
    assert harden(soft, 4, (4, 8))[:, [0, 7]].tolist() == [[0, 1]] * 4
    flat = torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]])  # an object that is nowhere stays nowhere
    assert harden(flat, 4, (4, 8)).max() == 0


def test_scenes_are_scored_and_videos_are_told():
    told: list[str] = []
    videos = open_videos("scenes:2")
    scores = evaluate_video(Brightness(), videos, VideoConfig(short_px=96), CPU, told.append)
    assert told == ["scene 0", "scene 1"]
    assert 0 <= scores.means["J&F"] <= 1
    assert len(scores.objects) == sum(len(videos[i].objects()) for i in range(2))
