"""Gauges: label-free metrics of the teacher's dense features, computed at every checkpoint.

position   share of the variance of the patch tokens that their position in the image explains
image      share of the variance that their image explains
neighbors  correlation of adjacent patch tokens
rank       effective rank of the patch tokens
agreement  share of the clusters of one view whose nearest cluster in the other view is the same one
drift      in runs that started from other weights: change of the patch similarities since the
           start; 0 is no change, random weights give about 0.5

Tokens that encode their position raise `position`, tokens that only encode their image raise
`image`, tokens that alternate from patch to patch lower `neighbors`, tokens that are all alike
lower `rank`, and `agreement` falls to `agreement_chance` if clusters cannot be matched across
views.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float16
from torch import Tensor

from croc.config import ClusterConfig, CrocConfig, PretrainConfig
from croc.data.decode import downscale_image, place_on_canvas
from croc.data.loader import epoch_order
from croc.data.sources import ImageSource, read_images
from croc.fabric import Fabric
from croc.io import replacing
from croc.method.backbone import Backbone
from croc.method.croc import cluster_tokens
from croc.method.photometric import normalize
from croc.method.randomness import sample_key
from croc.method.types import Canvases, Clusters, autocast_dtype
from croc.method.views import VIEWS, Crops, crop, make_views

IMAGES, MAX_TRIED = 64, 256
"""Number of images that are measured, and of those that are tried at most."""
BATCH = 16
START = "start-similarities.npy"
"""File in the run folder."""
MAX_PATCHES = 256
"""Patches of an image whose similarities are compared with those at the start."""
EPSILON = 1e-7
"""As in RankMe."""


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the patch tokens of a set of images."""

    position: float
    """Share of the variance explained by the mean over images at each position. Each feature counts
    the same, whatever its scale. Independent tokens of n images have 1 / n."""
    image: float
    """The same for the mean over the tokens of each image. Independent tokens have 1 / (h · w)."""
    neighbors: float
    """Correlation of horizontally and vertically adjacent tokens, the mean over features: 1 for
    tokens that are the same throughout an image, 0 for independent ones, less if they alternate."""
    rank: float
    """RankMe (Garrido et al. 2023): exp of the entropy of p = σ / Σσ + 1e-7, where σ are the
    singular values of the matrix of all tokens. As in the paper, tokens are not centered: if they
    collapse onto their mean, the rank is 1, while after centering it would be that of the remaining
    noise."""


def token_statistics(
    parts: Iterable[Float[Tensor, "_ C h w"]],
) -> tuple[TokenStatistics, Float[Tensor, "C h w"]]:
    """The statistics of tokens that are passed in parts, so that they need not all fit in memory,
    and the mean token at each position."""
    count, squares, total, gram, steps = 0, *(torch.zeros(()) for _ in range(4))
    means_of_parts: list[Tensor] = []
    for part in parts:
        tokens = part.double()
        rows = rearrange(tokens, "b c h w -> (b h w) c")
        gram = gram + (rows.mT @ rows).cpu()
        count, total = count + len(tokens), total + tokens.sum(dim=0).cpu()
        squares = squares + tokens.square().mean(dim=(2, 3)).sum(dim=0).cpu()
        down, right = (tokens.diff(dim=dim).square().mean(dim=(2, 3)) for dim in (2, 3))
        steps = steps + (down + right).sum(dim=0).cpu() / 2
        means_of_parts.append(tokens.mean(dim=(2, 3)).cpu())
    image_means, place_means = torch.cat(means_of_parts), total / count
    mean = image_means.mean(dim=0)
    variance = squares / count - mean.square()
    varies = variance > 1e-9 * squares / count  # nothing explains a constant feature
    by_place = (place_means - mean[:, None, None]).square().mean(dim=(1, 2))
    by_image = (image_means - mean).square().mean(dim=0)
    together = variance - steps / count / 2
    explained = (by_place, by_image, together)
    shares = ((part / variance)[varies].mean().item() for part in explained)
    return TokenStatistics(*shares, rank=_effective_rank(gram)), place_means


def _effective_rank(gram: Float[Tensor, "C C"]) -> float:
    """From the tokens' Gram matrix, whose eigenvalues are the squared singular values."""
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    p = singular / singular.sum() + EPSILON
    return (-p * p.log()).sum().exp().item()


def count_matches(patches: Float[Tensor, "2 B N D"], clusters: Clusters) -> tuple[int, int, int]:
    """Numbers of matches in both directions (clusters whose nearest centroid in the other view is
    their own), of clusters, and of pairs of image and head that have clusters.

    Centroids are pooled from the patch tokens and compared by cosine, among the valid clusters of
    an image and head. Images and heads with fewer than two valid clusters are not counted.
    """
    valid = clusters.valid
    pooled = torch.einsum("mbnd,mbhnk->mbhkd", patches, clusters.assignments.to(patches.dtype))
    first, second = F.normalize(pooled, dim=-1)
    cosines = torch.einsum("bhkd,bhld->bhkl", first, second)
    cosines = cosines.masked_fill(~(valid[..., None] & valid[..., None, :]), -torch.inf)
    counted = valid & (valid.sum(dim=-1, keepdim=True) >= 2)
    index = torch.arange(valid.shape[-1], device=valid.device)
    there, back = (((cosines.argmax(dim=dim) == index) & counted).sum() for dim in (-1, -2))
    counts = torch.stack([there + back, counted.sum(), counted.any(dim=-1).sum()]).tolist()
    return counts[0], counts[1], counts[2]


def patch_similarities(tokens: Float[Tensor, "B C h w"]) -> Float[Tensor, "B n n"]:
    """Cosine similarities between at most MAX_PATCHES evenly spaced patches of an image."""
    stride = math.ceil(math.sqrt(tokens[0, 0].numel() / MAX_PATCHES))
    unit = F.normalize(tokens.float()[:, :, ::stride, ::stride].flatten(2), dim=1)
    return unit.mT @ unit


def measure_drift(now: Float[Tensor, "B n n"], start: Float[Tensor, "B n n"]) -> float:
    """1 − CKA of the similarities between an image's patches, averaged over images: 0 if they are
    the same up to scale and offset, 1 if they are unrelated.

    The mean squared difference would mostly measure what all patches have in common: a vector that
    is added to every token, without changing how patches compare, outweighs a collapse.
    """
    a, b = (x.double() - x.double().mean(dim=1, keepdim=True) for x in (now, start))
    a, b = ((x - x.mean(dim=2, keepdim=True)).flatten(1) for x in (a, b))
    return max(0.0, 1 - F.cosine_similarity(a, b).mean().item())


class Gauges:
    """Measures weights on a fixed set of training images, chosen by the run's seed.

    It uses a copy of the backbone that is not compiled, on the run's device and in its precision,
    made at the first measurement. The run's own networks and random state are not touched. In a run
    with --init, the similarities at the start are kept in `folder`.
    """

    def __init__(
        self, fabric: Fabric, config: PretrainConfig, source: ImageSource, folder: Path
    ) -> None:
        self._fabric, self._views, self._config, self._source = fabric, config.views, config, source
        self._start = folder / START

    @cached_property
    def _backbone(self) -> Backbone:
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(self._config.model, self._views.size_px)
        return backbone.eval().requires_grad_(False)

    @cached_property
    def _cluster(self) -> ClusterConfig:
        """The run's settings, or the defaults for methods that do not cluster."""
        if isinstance(self._config, CrocConfig):
            return self._config.cluster
        default, patches = ClusterConfig(), (self._views.size_px // self._backbone.patch_px) ** 2
        return replace(default, k_start=min(default.k_start, VIEWS * patches))

    @cached_property
    def _canvases(self) -> Canvases:
        """The first decodable images in the order of the first epoch."""
        canvas_px, seed = self._config.data.max_side_px, self._config.run.seed
        pixels, sizes, keys = [], [], []
        order = epoch_order(len(self._source), seed, 0)[:MAX_TRIED].tolist()
        for index, image in islice(read_images(self._source, order), IMAGES):
            image = downscale_image(image, canvas_px)
            pixels.append(place_on_canvas(image, canvas_px))
            sizes.append(image.shape[:2])
            keys.append(sample_key(seed, 0, index))
        return Canvases(torch.from_numpy(np.stack(pixels)), torch.tensor(sizes), torch.tensor(keys))

    @torch.no_grad()
    def measure(self, weights: dict[str, Tensor], step: int) -> dict[str, float]:
        """The gauges of a backbone's weights; those of step 0 are what `drift` is measured from."""
        self._backbone.load_state_dict(weights)
        device = self._fabric.device
        try:
            self._backbone.to(device)
            batches = [batch.to(device) for batch in self._canvases.split(BATCH)]
            similarities: list[Tensor] = []
            statistics, _ = token_statistics(self._measured(batches, similarities))
            counts = zip(*(self._matches(batch) for batch in batches))
            matches, clusters, pairs = map(sum, counts)
        finally:
            self._backbone.cpu()  # between checkpoints, training has all GPU memory
        return {
            **asdict(statistics),
            "agreement": matches / (2 * clusters) if clusters else float("nan"),
            "agreement_chance": pairs / clusters if clusters else float("nan"),
            **(self._drift(torch.cat(similarities), step) if self._config.model.init else {}),
        }

    def _measured(
        self, batches: list[Canvases], similarities: list[Tensor]
    ) -> Iterator[Float[Tensor, "B C h w"]]:
        """Yield the tokens of each batch, and append their similarities."""
        for batch in batches:
            tokens = self._tokens(batch)
            similarities.append(patch_similarities(tokens).half().cpu())
            yield tokens

    def _drift(self, now: Float16[Tensor, "B n n"], step: int) -> dict[str, float]:
        """Empty if the run had no gauges at its start."""
        if step == 0:
            with replacing(self._start) as partial, partial.open("wb") as file:
                np.save(file, now.numpy())
        if not self._start.exists():
            return {}
        start = torch.from_numpy(np.load(self._start))
        return {"drift": measure_drift(now.float(), start.float())}

    def _tokens(self, canvases: Canvases) -> Float[Tensor, "B C h w"]:
        """The patch tokens of whole images, resized to the square of a view."""
        boxes = F.pad(canvases.sizes.flip(-1).float(), (2, 0))[None]
        whole = Crops(boxes, torch.zeros_like(boxes[..., 0], dtype=torch.bool))
        pixels = normalize(crop(canvases.pixels, whole, self._views.size_px))
        with self._fabric.autocast():
            _, patches = self._backbone(pixels)
        grid = self._views.size_px // self._backbone.patch_px
        return rearrange(patches[0], "b (h w) c -> b c h w", h=grid)

    def _matches(self, canvases: Canvases) -> tuple[int, int, int]:
        """Matches between two augmented views that are clustered as in a training step."""
        with self._fabric.autocast():
            dtype = autocast_dtype(self._fabric.device, torch.float32)
            views = make_views(canvases, self._views, self._backbone.patch_px, dtype)
            tokens = self._backbone.forward_tokens(views.pixels, self._cluster.tokens)
            clusters = cluster_tokens(tokens, views, canvases.sample_keys, self._cluster)
        return count_matches(tokens.patches.float(), clusters)
