"""Video object segmentation: the first frame's mask, carried along by nearest neighbours."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from croc.evals.boundaries import VideoScores, join_videos, video_scores
from croc.evals.features import DenseBackbone
from croc.evals.videos import Video, VideoData
from croc.photometric import normalise


@dataclass(frozen=True)
class VideoConfig:
    """The paper's protocol, which is DINO's."""

    short_px: int = 480
    """The shorter side of a frame; the longer one is floored to a multiple of 64."""
    last_frames: int = 7
    """Frames before the current one that vote, beside the first."""
    radius: int = 12
    """Patches away from which a vote may come, in rows and columns."""
    best: int = 5
    """Votes that count for each patch."""
    temperature: float = 0.1
    """Votes weigh exp(cosine / this)."""


def evaluate_video(
    backbone: DenseBackbone,
    videos: VideoData,
    config: VideoConfig,
    device: torch.device,
    finished: Callable[[str], None] | None = None,
) -> VideoScores:
    """J and F of every object of every video; `finished` hears each video's name."""
    scores = []
    for index in range(len(videos)):
        video = videos[index]
        predicted = segment_video(backbone, video, config, device)
        truth = np.stack([video.read_mask(t) for t in range(len(video))])
        scores.append(video_scores(predicted, truth))
        if finished:
            finished(video.name)
    return join_videos(scores)


@torch.no_grad()
def segment_video(
    backbone: DenseBackbone, video: Video, config: VideoConfig, device: torch.device
) -> UInt8[np.ndarray, "t h w"]:
    """The object of every pixel of every frame, from the first frame's mask alone."""
    mask = video.read_mask(0)
    features = _features(backbone, video.read_frame(0), config, device)
    objects = int(mask.max()) + 1
    _, rows, columns = features.shape
    small = Image.fromarray(mask).resize((columns, rows), Image.Resampling.NEAREST)
    labels = F.one_hot(torch.from_numpy(np.array(small)).long(), objects)
    first = (features, rearrange(labels, "h w o -> o h w").float().to(device))
    near = neighbourhood(rows, columns, config.radius, device)
    latest: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.last_frames)
    masks = [mask]
    for t in range(1, len(video)):
        features = _features(backbone, video.read_frame(t), config, device)
        soft = propagate(features, [first, *latest], near, config)
        latest.append((features, soft))
        masks.append(harden(soft, backbone.stride_px, mask.shape))
    return np.stack(masks)


def _features(
    backbone: DenseBackbone,
    frame: UInt8[np.ndarray, "h w 3"],
    config: VideoConfig,
    device: torch.device,
) -> Float[Tensor, "C rows columns"]:
    """Unit features of a frame at the protocol's size."""
    size = frame_size(frame.shape[0], frame.shape[1], config.short_px)
    resized = Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(resized)).to(device).permute(2, 0, 1)[None].float() / 255
    return F.normalize(backbone.features(normalise(pixels))[0].float(), dim=0)


def frame_size(height: int, width: int, short_px: int) -> tuple[int, int]:
    """(480, 854) becomes (480, 832)."""
    longer = max(64, int(max(height, width) * short_px / min(height, width)) // 64 * 64)
    return (short_px, longer) if width >= height else (longer, short_px)


def neighbourhood(
    rows: int, columns: int, radius: int, device: torch.device
) -> Bool[Tensor, "N N"]:
    """Which patches lie within the radius of which, by rows and by columns."""
    y = torch.arange(rows, device=device).repeat_interleave(columns)
    x = torch.arange(columns, device=device).repeat(rows)
    far = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs())
    return far <= radius


def propagate(
    features: Float[Tensor, "C h w"],
    sources: list[tuple[Float[Tensor, "C h w"], Float[Tensor, "O h w"]]],
    near: Bool[Tensor, "N N"],
    config: VideoConfig,
) -> Float[Tensor, "O h w"]:
    """Each patch's soft label: the mean of its best votes' labels, weighed by their affinity.

    votes of patch n: all patches m of all sources with near[n, m], weight exp(cosine / τ); the
    `best` heaviest count.
    """
    target = features.flatten(1)
    cosines = torch.stack([target.mT @ source.flatten(1) for source, _ in sources])
    weights = (cosines / config.temperature).exp().masked_fill(~near, 0)
    votes = rearrange(weights, "s n m -> n (s m)")
    heaviest, chosen = votes.topk(min(config.best, votes.shape[1]), dim=1)
    labels = torch.cat([label.flatten(1) for _, label in sources], dim=1)
    heaviest = heaviest / heaviest.sum(dim=1, keepdim=True)
    soft = torch.einsum("nk,onk->on", heaviest, labels[:, chosen])
    return rearrange(soft, "o (h w) -> o h w", h=features.shape[1])


def harden(
    soft: Float[Tensor, "O h w"], stride_px: int, shape: tuple[int, ...]
) -> UInt8[np.ndarray, "H W"]:
    """Upsample by the stride, bring each object's map to 0 … 1, take the strongest."""
    large = F.interpolate(soft[None], scale_factor=stride_px, mode="bilinear")[0]
    lowest, highest = (large.flatten(1).min(dim=1).values, large.flatten(1).max(dim=1).values)
    span = (highest - lowest)[:, None, None]
    scaled = (large - lowest[:, None, None]) / span.clamp_min(1e-12)
    scaled = torch.where(span > 0, scaled, large)  # a map without contrast stays as it is
    found = Image.fromarray(scaled.argmax(dim=0).to(torch.uint8).cpu().numpy())
    return np.array(found.resize((shape[1], shape[0]), Image.Resampling.NEAREST))
