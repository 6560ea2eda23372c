"""Video object segmentation: the first frame's mask, propagated by nearest neighbours."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
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
from croc.eval.features import Track, silent
from croc.eval.metrics import VideoScores, video_scores
from croc.eval.pictures import VideoExample, new_folder, require_av, write_masks, write_overlay
from croc.eval.protocols import VideoConfig
from croc.eval.videos import Video
from croc.method.photometric import normalise
from croc.weights.open import DenseBackbone, check_fit

Item = TypeVar("Item")
Made = TypeVar("Made")
Masks = UInt8[np.ndarray, "t h w"]

EXAMPLES = 4
EXAMPLE_FRAMES = 4
FRAMES_AHEAD = 4
LONGER_PX = 64
SCORED_FRAMES = 3  # the first and the last are not scored, so one is left


@dataclass(frozen=True)
class VideoReport:
    """Scores of the videos whose frames all have a mask, and examples of the first few."""

    scores: VideoScores | None
    """Of all objects, which weigh equally; None if no video could be scored."""
    videos: dict[str, VideoScores]
    examples: tuple[VideoExample, ...]


def evaluate_video(
    backbone: DenseBackbone,
    videos: Sequence[Video],
    config: VideoConfig,
    device: torch.device,
    track: Track = silent,
    masks: Path | None = None,
    overlays: Path | None = None,
) -> VideoReport:
    """J and F of every object of every video that has all its masks.

    Predictions are written to MASKS/VIDEO/00000.png, as DAVIS stores them, and painted over the
    frames to OVERLAYS/VIDEO.mp4. Both folders must be new or empty; after an error nothing is left.
    """
    check_fit(backbone, config.short_px, flag="--video.short-px: frames")
    scored = [
        video.name
        for video in videos
        if len(video) >= SCORED_FRAMES and all(map(video.has_mask, range(len(video))))
    ]
    if not scored and masks is None and overlays is None:
        raise UserError(
            f"none of the {len(videos)} videos has {SCORED_FRAMES} frames and a mask for each, so "
            "none can be scored: pass --masks or --overlays to write predictions instead"
        )
    if overlays is not None:
        require_av()
    scores: dict[str, VideoScores] = {}
    examples: list[VideoExample] = []

    def segmented() -> Iterator[tuple[Video, Masks]]:
        steps = (
            (video, mask) for video in videos for mask in follow(backbone, video, config, device)
        )
        predicted: list[np.ndarray] = []
        for video, mask in track(steps, "video", sum(map(len, videos))):
            predicted.append(mask)
            if len(predicted) == len(video):
                yield video, np.stack(predicted)
                predicted = []

    with ExitStack() as stack:
        mask_folder, overlay_folder = (
            path and stack.enter_context(new_folder(path)) for path in (masks, overlays)
        )

        def finish(item: tuple[Video, Masks]) -> None:
            video, predicted = item
            truth = None
            if video.name in scored:
                truth = np.stack([video.read_mask(t) for t in range(len(video))])
                scores[video.name] = video_scores(predicted, truth)
                if len(examples) < EXAMPLES:
                    some = np.linspace(0, len(video) - 1, min(EXAMPLE_FRAMES, len(video)))
                    some = some.round().astype(int)
                    frames = np.stack([video.read_frame(t) for t in some.tolist()])
                    examples.append(VideoExample(video.name, frames, truth[some], predicted[some]))
            if mask_folder:
                write_masks(mask_folder / video.name, predicted)
            if overlay_folder:
                frames = (video.read_frame(t) for t in range(len(video)))
                write_overlay(overlay_folder / f"{video.name}.mp4", frames, predicted, truth)

        for _ in ahead(finish, segmented(), 1):  # while the next video is segmented
            pass
    joined = None
    if scores:
        regions, boundaries = zip(*((each.region, each.boundary) for each in scores.values()))
        joined = VideoScores(np.concatenate(regions), np.concatenate(boundaries))
    return VideoReport(joined, scores, tuple(examples))


def ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int) -> Iterator[Made]:
    """`make(item)` of each item, in order, by a thread that is up to `count` items ahead."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@torch.no_grad()
def follow(
    backbone: DenseBackbone, video: Video, config: VideoConfig, device: torch.device
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

    frames = ahead(read, range(len(video)), FRAMES_AHEAD)
    features = unit_features(backbone, next(frames), device)
    _, rows, columns = features.shape
    small = Image.fromarray(mask).resize((columns, rows), Image.Resampling.NEAREST)
    labels = F.one_hot(torch.from_numpy(np.array(small)).long(), int(mask.max()) + 1)
    first = (features, rearrange(labels, "h w o -> o h w").to(features))
    near = neighbourhood(rows, columns, config.radius, device)
    latest: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.last_frames)
    yield mask
    for frame in frames:
        features = unit_features(backbone, frame, device)
        soft = propagate(features, [first, *latest], near, config)
        latest.append((features, soft))
        yield harden(soft, backbone.stride_px, mask.shape)


def frame_size(height: int, width: int, short_px: int, stride_px: int = 16) -> tuple[int, int]:
    """(480, 854) becomes (480, 832); if patches do not divide 64, the unit is their size."""
    unit = stride_px if LONGER_PX % stride_px else LONGER_PX
    longer = int(max(height, width) * short_px / min(height, width))
    longer = max(unit, longer // unit * unit)
    return (short_px, longer) if width >= height else (longer, short_px)


def unit_features(
    backbone: DenseBackbone, frame: UInt8[np.ndarray, "h w 3"], device: torch.device
) -> Float32[Tensor, "C rows columns"]:
    """A frame's features, of length 1; float32 whatever the backbone computes in."""
    pixels = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].float() / 255
    return F.normalize(backbone.features(normalise(pixels))[0].float(), dim=0)


def neighbourhood(
    rows: int, columns: int, radius: int, device: torch.device
) -> Bool[Tensor, "N N"]:
    """Which patches are within the radius of which, by rows and by columns."""
    y = torch.arange(rows, device=device).repeat_interleave(columns)
    x = torch.arange(columns, device=device).repeat(rows)
    return torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()) <= radius


def propagate(
    features: Float[Tensor, "C h w"],
    sources: list[tuple[Float[Tensor, "C h w"], Float[Tensor, "O h w"]]],
    near: Bool[Tensor, "N N"],
    config: VideoConfig,
) -> Float[Tensor, "O h w"]:
    """Each patch's soft label: the mean of its best votes' labels, weighted by their affinity.

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
    """Upsample by the stride, scale each object's map to 0 … 1, take the largest."""
    large = F.interpolate(soft[None], scale_factor=stride_px, mode="bilinear")[0]
    lowest, highest = large.amin(dim=(1, 2), keepdim=True), large.amax(dim=(1, 2), keepdim=True)
    scaled = (large - lowest) / (highest - lowest).clamp_min(1e-12)
    scaled = torch.where(highest > lowest, scaled, large)  # a constant map stays as it is
    mask = Image.fromarray(scaled.argmax(dim=0).to(torch.uint8).cpu().numpy())
    return np.array(mask.resize((shape[1], shape[0]), Image.Resampling.NEAREST))
