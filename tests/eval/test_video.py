"""DAVIS's layout on small trees; label propagation against loops, and videos of a known answer."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from croc.errors import UserError
from croc.eval.machine import Machine
from croc.eval.metrics import video_means, video_scores
from croc.eval.protocols import VideoConfig
from croc.eval.video import (
    evaluate_video,
    frame_size,
    neighborhood,
    propagate_labels,
    propagate_masks,
    to_hard_mask,
)
from croc.eval.videos import Video, open_videos
from croc.weights.backbones import DenseBackbone
from tests.eval import trees
from tests.eval.fakes import CPU


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


@pytest.mark.parametrize(
    ("radius", "best"),
    [(1, 3), (12, 3), (1, 15), (0, 5), (12, 99)],  # in a corner of (1, 15) 12 are near
)
def test_propagation_equals_the_loops(radius: int, best: int):
    generator = torch.Generator().manual_seed(0)
    config = VideoConfig(radius=radius, top_k=best)

    def unit() -> Tensor:
        return F.normalize(torch.randn(6, 4, 5, generator=generator), dim=0)

    sources = [(unit(), torch.rand(3, 4, 5, generator=generator)) for _ in range(3)]
    features = unit()
    soft = propagate_labels(features, sources, neighborhood(4, 5, radius, CPU), config)
    expected = naive_propagate(features, sources, radius, best, 0.1)
    torch.testing.assert_close(soft, expected)


@pytest.mark.cuda
def test_gpu_and_cpu_agree():
    generator, gpu = torch.Generator().manual_seed(0), torch.device("cuda")
    frames = F.normalize(torch.randn(8, 64, 30, 52, generator=generator), dim=1)
    labels = torch.rand(8, 3, 30, 52, generator=generator)
    near = neighborhood(30, 52, 12, CPU)
    softs = [
        propagate_labels(
            frames[-1].to(device),
            [(frame.to(device), label.to(device)) for frame, label in zip(frames, labels)],
            near.to(device),
            VideoConfig(),
        )
        for device in (CPU, gpu, gpu)
    ]
    torch.testing.assert_close(softs[0], softs[1].cpu(), atol=1e-4, rtol=0)
    assert torch.equal(softs[1], softs[2])


def test_frames_are_resized_as_the_protocol_says():
    assert frame_size(480, 854, 480) == (480, 832)
    assert frame_size(854, 480, 480) == (832, 480)
    assert frame_size(1080, 1920, 480) == (480, 832)
    assert frame_size(96, 96, 480) == (480, 448)


def sliding_mask(t: int) -> np.ndarray:
    mask = np.zeros((64, 128), np.uint8)
    mask[16:48, 16 + 8 * t : 48 + 8 * t] = 1
    return mask


def sliding_frame(t: int) -> np.ndarray:
    """A bright square on a dark ground moves eight pixels to the right with each frame."""
    return np.repeat((40 + 170 * sliding_mask(t))[..., None], 3, axis=2)


SLIDING = Video("sliding", 5, sliding_frame, sliding_mask)


class Brightness(DenseBackbone):
    """Features that tell bright from dark, and nothing else."""

    name = "brightness"
    stride_px = 8

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        mean = F.avg_pool2d(images, 8).mean(dim=1, keepdim=True)
        return torch.cat([mean, mean.new_ones(1).expand_as(mean)], dim=1)


CONFIG = VideoConfig(short_px=64)


def segment_video(backbone, video: Video, config: VideoConfig) -> np.ndarray:
    return np.stack(list(propagate_masks(backbone, CPU, video, config)))


def test_a_sliding_square_is_followed():
    predicted = segment_video(Brightness(), SLIDING, CONFIG)
    assert predicted.shape == (5, 64, 128)
    assert np.array_equal(predicted[0], sliding_mask(0))
    means = evaluate_video(Brightness(), Machine(), (SLIDING,), CONFIG).scores
    assert means["J"] > 75
    assert means["J&F"] == pytest.approx((means["J"] + means["F"]) / 2)


@pytest.mark.parametrize(("last_frames", "votes"), [(0, [1, 1, 1, 1]), (2, [1, 2, 3, 3])])
def test_the_first_frame_and_the_last_ones_vote_softly(last_frames, votes, monkeypatch):
    calls = []

    def watched(features, sources, near, config):
        soft = propagate_labels(features, sources, near, config)
        calls.append((sources, (features, soft)))
        return soft

    monkeypatch.setattr("croc.eval.video.propagate_labels", watched)
    mixing = replace(CONFIG, last_frames=last_frames, top_k=30, temperature=1.0)
    segment_video(Brightness(), SLIDING, mixing)
    assert [len(sources) for sources, _ in calls] == votes
    (first,) = calls[0][0]
    assert np.array_equal(first[1][1].numpy(), sliding_mask(0)[4::8, 4::8])
    outputs = [output for _, output in calls]
    for t, (sources, _) in enumerate(calls):
        expected = [first, *outputs[max(0, t - last_frames) : t]]
        for source, other in zip(sources, expected, strict=True):
            assert torch.equal(source[0], other[0])
            assert torch.equal(source[1], other[1])
    assert all(((soft > 0.01) & (soft < 0.99)).any() for _, soft in outputs)


def test_hardening_scales_each_object_by_itself():
    soft = torch.tensor([[[0.9, 0.6]], [[0.1, 0.4]]])
    assert to_hard_mask(soft, 4, (4, 8))[:, [0, 7]].tolist() == [[0, 1]] * 4
    flat = torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]])  # an object that is nowhere stays nowhere
    assert to_hard_mask(flat, 4, (4, 8)).max() == 0


def test_scenes_are_scored_and_masks_are_written_as_davis_does(tmp_path):
    videos, config = open_videos("scenes:2"), VideoConfig(short_px=96)
    report = evaluate_video(Brightness(), Machine(), videos, config, tmp_path / "masks")
    by_video = []
    for video in videos:
        truth = np.stack([video.read_mask(t) for t in range(len(video))])
        predicted = segment_video(Brightness(), video, config)
        by_video.append(video_scores(predicted, truth))
        assert report.classes[video.name] == video_means(by_video[-1])["J&F"]
        files = sorted((tmp_path / "masks" / video.name).iterdir())
        assert [path.name for path in files] == [f"{t:05d}.png" for t in range(12)]
        for path, expected in zip(files, predicted):
            with Image.open(path) as image:
                assert image.mode == "P"
                assert np.array_equal(np.array(image), expected)
    assert report.scores == video_means(np.hstack(by_video))  # objects weigh equally


# A folder with the real small sets; without it the test on them is skipped.
REAL = Path(os.environ.get("CROC_DATA", "no-data")) / "davis2016-six.tar"


def names_of(spec: str) -> list[str]:
    return [video.name for video in open_videos(spec)]


@pytest.mark.parametrize("root", ["", "DAVIS"])
def test_several_objects(tmp_path, root):
    trees.write(tmp_path / root, trees.davis())
    assert names_of(f"davis17:{tmp_path}") == ["drift", "camel"]
    _, camel = open_videos(f"davis17:{tmp_path}")
    assert len(camel) == 3
    assert camel.read_frame(2).shape == (trees.HEIGHT, trees.WIDTH, 3)
    assert camel.read_mask(0)[0, :4].tolist() == [0, 1, 2, 5]
    assert camel.read_mask(1)[0, :4].tolist() == [0, 1, 2, 0]
    (tmp_path / root / "Annotations/480p/camel/00001.png").unlink()
    with pytest.raises(UserError, match=r"camel/00001.png is missing"):
        open_videos(f"davis17:{tmp_path}")


def test_frames_of_any_suffix_but_at_least_three(tmp_path):
    trees.write(tmp_path, trees.davis())
    frames = tmp_path / "JPEGImages/480p/camel"
    (frames / "00001.jpg").rename(frames / "00001.JPG")
    assert len(open_videos(f"davis17:{tmp_path}")[1]) == 3
    (frames / "00001.JPG").unlink()
    with pytest.raises(UserError, match="camel has 2 frames, too few"):
        open_videos(f"davis17:{tmp_path}")


def test_one_object_in_2016(tmp_path):
    trees.write(tmp_path, trees.davis())
    camel, _, unlisted = open_videos(f"davis16:{tmp_path}")
    assert camel.read_mask(0)[0, :4].tolist() == [0, 1, 1, 1]
    assert unlisted.read_mask(0)[0, :4].tolist() == [0, 1, 0, 1]
    three_channels = trees.panoptic_png(trees.label_map(0, 255).astype(np.int64))
    trees.write(tmp_path, {"Annotations/480p/camel/00000.png": three_channels})
    assert open_videos(f"davis16:{tmp_path}")[0].read_mask(0)[0, :2].tolist() == [0, 1]
    with pytest.raises(UserError, match="mode RGB"):
        open_videos(f"davis17:{tmp_path}")[1].read_mask(0)
    for path, line in (
        ("480p", b"/JPEGImages/480p/drift/00000.jpg /x.png\n"),
        ("2016", b"camel\n"),
    ):
        trees.write(tmp_path, {f"ImageSets/{path}/val.txt": line * 2})
        assert names_of(f"davis16:{tmp_path}") == ["drift" if path == "480p" else "camel"]


def test_real_data():
    if not REAL.exists():
        pytest.skip("the real data is not available")
    videos = open_videos(f"davis16:{REAL}")
    assert len(videos) == 6
    for video in videos:
        assert video.read_frame(0).shape == (480, 854, 3)
        assert np.unique(video.read_mask(len(video) - 1)).tolist() == [0, 1]
