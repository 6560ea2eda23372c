"""Video object segmentation: the first frame's mask, propagated by nearest neighbors."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Float32, UInt8
from PIL import Image
from torch import Tensor

from croc.errors import UserError
from croc.eval.features import EXAMPLES, Example, Report, progress
from croc.eval.machine import Machine
from croc.eval.metrics import video_means, video_scores
from croc.eval.pictures import write_masks
from croc.eval.protocols import VideoConfig
from croc.eval.videos import Video
from croc.weights.backbones import DenseBackbone

Item = TypeVar("Item")
Result = TypeVar("Result")

FRAMES_AHEAD = 4
LONGER_PX = 64


def evaluate_video(
    backbone: DenseBackbone,
    machine: Machine,
    videos: Sequence[Video],
    config: VideoConfig,
    masks: Path | None = None,
) -> Report:
    """J and F, means over all objects of all videos; the first videos' last frames as examples.

    Predictions are written to MASKS/VIDEO/00000.png, as DAVIS stores them; the folder must be new
    or empty.
    """
    if masks and masks.exists() and any(masks.iterdir()):
        raise UserError(f"{masks} exists and is not empty: delete it or pass another folder")
    scores: dict[str, np.ndarray] = {}  # J and F of each object
    examples: list[Example] = []

    def score_and_write(segmented: tuple[Video, UInt8[np.ndarray, "t h w"]]) -> None:
        video, predicted = segmented
        truth = np.stack([video.read_mask(t) for t in range(len(video))])
        scores[video.name] = video_scores(predicted, truth)
        if len(examples) < EXAMPLES:  # the last frame is the hardest
            image = torch.from_numpy(video.read_frame(len(video) - 1)).permute(2, 0, 1)
            last_masks = (torch.from_numpy(frames[-1]).long() for frames in (truth, predicted))
            examples.append(Example(image, *last_masks))
        if masks:
            write_masks(masks / video.name, predicted)

    segmented = (
        (video, np.stack(list(propagate_masks(backbone, machine.device, video, config))))
        for video in progress(videos, "videos", len(videos))
    )
    for _ in map_ahead(score_and_write, segmented, 1):  # while the next video is segmented
        pass
    means = video_means(np.hstack(list(scores.values())))
    by_video: dict[str, float | None] = {
        name: video_means(video)["J&F"] for name, video in scores.items()
    }
    return Report(means, by_video, tuple(examples))


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], count: int
) -> Iterator[Result]:
    """`map`, computed by a thread that is up to `count` items ahead."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@torch.no_grad()
def propagate_masks(
    backbone: DenseBackbone, device: torch.device, video: Video, config: VideoConfig
) -> Iterator[UInt8[np.ndarray, "h w"]]:
    """The mask of each frame in turn, from the first frame's alone."""
    mask = video.read_mask(0)
    height, width = mask.shape
    size = frame_size(height, width, config.short_px, backbone.stride_px)

    def read(t: int) -> UInt8[np.ndarray, "h w 3"]:
        frame = video.read_frame(t)
        if frame.shape[:2] != mask.shape:
            raise UserError(
                f"{video.name}: frame {t} is {frame.shape[1]}×{frame.shape[0]}, the first mask "
                f"{width}×{height}: they must have the same size"
            )
        resized = Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.array(resized)

    frames = map_ahead(read, range(len(video)), FRAMES_AHEAD)
    features = unit_features(backbone, next(frames), device)
    _, rows, columns = features.shape
    small = Image.fromarray(mask).resize((columns, rows), Image.Resampling.NEAREST)
    labels = F.one_hot(torch.from_numpy(np.array(small)).long(), int(mask.max()) + 1)
    first = (features, rearrange(labels, "h w o -> o h w").to(features))
    near = neighborhood(rows, columns, config.radius, device)
    latest: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.last_frames)
    yield mask
    for frame in frames:
        features = unit_features(backbone, frame, device)
        soft = propagate_labels(features, [first, *latest], near, config)
        latest.append((features, soft))
        yield to_hard_mask(soft, backbone.stride_px, mask.shape)


def frame_size(height: int, width: int, short_px: int, stride_px: int = 16) -> tuple[int, int]:
    """(480, 854) becomes (480, 832); if patches do not divide 64, the unit is their size."""
    unit = stride_px if LONGER_PX % stride_px else LONGER_PX
    longer = int(max(height, width) * short_px / min(height, width))
    longer = max(unit, longer // unit * unit)
    return (short_px, longer) if width >= height else (longer, short_px)


def unit_features(
    backbone: DenseBackbone, frame: UInt8[np.ndarray, "h w 3"], device: torch.device
) -> Float32[Tensor, "C rows columns"]:
    """A frame's features, of length 1, in float32 regardless of the backbone's precision."""
    pixels = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].float() / 255
    return F.normalize(backbone.features(backbone.normalize(pixels))[0].float(), dim=0)


def neighborhood(rows: int, columns: int, radius: int, device: torch.device) -> Bool[Tensor, "N N"]:
    """Whether two patches are within the radius of each other, in rows and in columns."""
    y = torch.arange(rows, device=device).repeat_interleave(columns)
    x = torch.arange(columns, device=device).repeat(rows)
    return torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()) <= radius


def propagate_labels(
    features: Float[Tensor, "C h w"],
    sources: list[tuple[Float[Tensor, "C h w"], Float[Tensor, "O h w"]]],
    near: Bool[Tensor, "N N"],
    config: VideoConfig,
) -> Float[Tensor, "O h w"]:
    """Each patch's soft label: the mean of its heaviest votes' labels, weighted.

    votes of patch n: all patches m of all sources with near[n, m], weight exp(cosine / τ); the
    `top_k` heaviest count, or all if there are fewer.
    """
    votes = torch.cat([source.flatten(1) for source, _ in sources], dim=1)
    labels = torch.cat([label.flatten(1) for _, label in sources], dim=1)
    cosines = features.flatten(1).mT @ votes
    by_source = cosines.view(len(near), len(sources), -1)  # one large tensor, changed in place
    by_source.masked_fill_(~near[:, None], -torch.inf)
    heaviest, chosen = cosines.topk(min(config.top_k, cosines.shape[1]), dim=1)
    weights = (heaviest / config.temperature).softmax(dim=1)  # 0 where fewer than top_k are near
    soft = torch.einsum("nk,onk->on", weights, labels[:, chosen])
    return rearrange(soft, "o (h w) -> o h w", h=features.shape[1])


def to_hard_mask(
    soft: Float[Tensor, "O h w"], stride_px: int, shape: tuple[int, ...]
) -> UInt8[np.ndarray, "H W"]:
    """Upsample by the stride, scale each object's map to 0 … 1, take the largest."""
    large = F.interpolate(soft[None], scale_factor=stride_px, mode="bilinear")[0]
    lowest, highest = large.amin(dim=(1, 2), keepdim=True), large.amax(dim=(1, 2), keepdim=True)
    scaled = (large - lowest) / (highest - lowest).clamp_min(1e-12)
    scaled = torch.where(highest > lowest, scaled, large)  # a constant map stays as it is
    mask = Image.fromarray(scaled.argmax(dim=0).to(torch.uint8).cpu().numpy())
    return np.array(mask.resize((shape[1], shape[0]), Image.Resampling.NEAREST))
