"""Video object segmentation: the first frame's mask, carried along by nearest neighbours."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
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
from croc.eval.boundaries import VideoScores, join_videos, video_scores
from croc.eval.features import DenseBackbone, check_fit
from croc.eval.protocols import VideoConfig
from croc.eval.tracking import Track, silent
from croc.eval.videos import Video, VideoData
from croc.lab.show.overlays import need_av, new_folder, write_masks, write_overlay
from croc.method.photometric import normalise

Item = TypeVar("Item")
Made = TypeVar("Made")
Masks = UInt8[np.ndarray, "t h w"]

EXAMPLES = 4
MOMENTS = 4
FRAMES_AHEAD = 4
LONGER_PX = 64
SCORED_FRAMES = 3  # the first and the last are not scored, so one is left


@dataclass(frozen=True)
class VideoExample:
    """Some frames of a video, from the first to the last, with their masks."""

    name: str
    frames: UInt8[np.ndarray, "t h w 3"]
    truth: UInt8[np.ndarray, "t h w"]
    predicted: UInt8[np.ndarray, "t h w"]


@dataclass(frozen=True)
class VideoReport:
    """Scores of the videos whose frames all have a mask, and pictures of the first few of them."""

    scores: VideoScores | None
    """Of all objects; None if no video could be scored."""
    videos: dict[str, VideoScores]
    examples: tuple[VideoExample, ...]


def evaluate_video(
    backbone: DenseBackbone,
    videos: VideoData,
    config: VideoConfig,
    device: torch.device,
    track: Track = silent,
    masks: Path | None = None,
    overlays: Path | None = None,
) -> VideoReport:
    """J and F of every object of every video that has all its masks.

    Predictions go to MASKS/VIDEO/00000.png, as DAVIS stores them, and painted over the frames to
    OVERLAYS/VIDEO.mp4. Both folders must be new or empty; they are filled whole or not at all.
    """
    check_fit(backbone, config.short_px, flag="--video.short-px: frames")
    each = [videos[index] for index in range(len(videos))]
    scored = [video.name for video in each if _can_be_scored(video)]
    if not scored and masks is None and overlays is None:
        raise UserError(
            f"none of the {len(each)} videos has {SCORED_FRAMES} frames and a mask for each, so "
            f"none can be scored: ask for the predicted masks or overlays instead"
        )
    if overlays is not None:
        need_av()
    with ExitStack() as stack:
        folders = [path and stack.enter_context(new_folder(path)) for path in (masks, overlays)]
        finish = partial(_finish, scored=scored, masks=folders[0], overlays=folders[1])
        segmented = _segment_all(backbone, each, config, device, track)
        finished = list(ahead(finish, segmented, 1))
    scores = {name: score for name, score, _ in finished if score}
    return VideoReport(
        scores=join_videos(list(scores.values())) if scores else None,
        videos=scores,
        examples=tuple(example for _, _, example in finished if example),
    )


def _can_be_scored(video: Video) -> bool:
    return len(video) >= SCORED_FRAMES and all(video.has_mask(t) for t in range(len(video)))


def _segment_all(
    backbone: DenseBackbone,
    videos: Sequence[Video],
    config: VideoConfig,
    device: torch.device,
    track: Track,
) -> Iterator[tuple[Video, Masks]]:
    """Each video with its masks; progress is told by frames, since videos are long."""
    steps = ((video, mask) for video in videos for mask in follow(backbone, video, config, device))
    masks: list[np.ndarray] = []
    for video, mask in track(steps, "video", sum(len(video) for video in videos)):
        masks.append(mask)
        if len(masks) == len(video):
            yield video, np.stack(masks)
            masks = []


def _finish(
    segmented: tuple[Video, Masks],
    scored: Sequence[str],
    masks: Path | None,
    overlays: Path | None,
) -> tuple[str, VideoScores | None, VideoExample | None]:
    """Score a video and write what is wanted of it."""
    video, predicted = segmented
    truth = None
    if video.name in scored:
        truth = np.stack([video.read_mask(t) for t in range(len(video))])
    if masks is not None:
        write_masks(masks / video.name, predicted)
    if overlays is not None:
        frames = (video.read_frame(t) for t in range(len(video)))
        write_overlay(overlays / f"{video.name}.mp4", frames, predicted, truth)
    if truth is None:
        return video.name, None, None
    wanted = video.name in scored[:EXAMPLES]
    example = _example(video, predicted, truth) if wanted else None
    return video.name, video_scores(predicted, truth), example


def _example(video: Video, predicted: Masks, truth: Masks) -> VideoExample:
    moments = np.linspace(0, len(video) - 1, min(MOMENTS, len(video))).round().astype(int)
    frames = np.stack([video.read_frame(t) for t in moments.tolist()])
    return VideoExample(video.name, frames, truth[moments], predicted[moments])


def ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int) -> Iterator[Made]:
    """What `make` makes of each item, in order, in a thread that is up to `count` items ahead."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def segment_video(
    backbone: DenseBackbone, video: Video, config: VideoConfig, device: torch.device
) -> UInt8[np.ndarray, "t h w"]:
    """The object of every pixel of every frame, from the first frame's mask alone."""
    return np.stack(list(follow(backbone, video, config, device)))


@torch.no_grad()
def follow(
    backbone: DenseBackbone, video: Video, config: VideoConfig, device: torch.device
) -> Iterator[UInt8[np.ndarray, "h w"]]:
    """The mask of each frame in turn; the first one's is given."""
    mask = video.read_mask(0)
    height, width = mask.shape
    size = frame_size(height, width, config.short_px, backbone.stride_px)
    read = partial(_resized, video, (height, width), size)
    frames = ahead(read, range(len(video)), FRAMES_AHEAD)
    features = unit_features(backbone, next(frames), device)
    first = (features, shrink(mask, features))
    _, rows, columns = features.shape
    near = neighbourhood(rows, columns, config.radius, device)
    latest: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.last_frames)
    yield mask
    for frame in frames:
        features = unit_features(backbone, frame, device)
        soft = propagate(features, [first, *latest], near, config)
        latest.append((features, soft))
        yield harden(soft, backbone.stride_px, mask.shape)


def _resized(
    video: Video, shape: tuple[int, int], size: tuple[int, int], t: int
) -> UInt8[np.ndarray, "h w 3"]:
    """A frame at the protocol's size."""
    frame = video.read_frame(t)
    if frame.shape[:2] != shape:
        raise UserError(
            f"{video.name}: frame {t} is {frame.shape[1]}×{frame.shape[0]}, the first mask "
            f"{shape[1]}×{shape[0]}: all must have one size"
        )
    return np.array(Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def unit_features(
    backbone: DenseBackbone, frame: UInt8[np.ndarray, "h w 3"], device: torch.device
) -> Float32[Tensor, "C rows columns"]:
    """A frame's features, of length 1; float32 whatever the backbone computes in."""
    pixels = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].float() / 255
    return F.normalize(backbone.features(normalise(pixels))[0].float(), dim=0)


def shrink(
    mask: UInt8[np.ndarray, "h w"], features: Float32[Tensor, "C rows columns"]
) -> Float32[Tensor, "O rows columns"]:
    """The label of each patch: one of all objects up to the highest number."""
    _, rows, columns = features.shape
    small = Image.fromarray(mask).resize((columns, rows), Image.Resampling.NEAREST)
    numbers = torch.from_numpy(np.array(small)).long()
    labels = F.one_hot(numbers, int(mask.max()) + 1).to(features)
    return rearrange(labels, "h w o -> o h w")


def frame_size(height: int, width: int, short_px: int, stride_px: int = 16) -> tuple[int, int]:
    """(480, 854) becomes (480, 832); where patches do not divide 64, the unit is theirs."""
    unit = stride_px if LONGER_PX % stride_px else LONGER_PX
    longer = int(max(height, width) * short_px / min(height, width))
    longer = max(unit, longer // unit * unit)
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
    `best` heaviest count, or all if there are fewer.
    """
    votes = torch.cat([source.flatten(1) for source, _ in sources], dim=1)
    labels = torch.cat([label.flatten(1) for _, label in sources], dim=1)
    cosines = features.flatten(1).mT @ votes
    by_source = cosines.view(len(near), len(sources), -1)  # one large tensor, changed in place
    by_source.masked_fill_(~near[:, None], -torch.inf)
    heaviest, chosen = cosines.topk(min(config.best, cosines.shape[1]), dim=1)
    weights = (heaviest / config.temperature).softmax(dim=1)  # 0 where fewer than `best` are near
    soft = torch.einsum("nk,onk->on", weights, labels[:, chosen])
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
