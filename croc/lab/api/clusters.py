"""`croc.cluster`: the method's own clustering, on tokens from wherever you have them."""

from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from croc.config import ClusterConfig
from croc.errors import UserError
from croc.method.clustering import cluster as cluster_joined
from croc.method.types import Clusters

DEFAULT = ClusterConfig()
SUM_TOLERANCE = 1e-3
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def cluster(
    tokens: Float[Tensor, "B H T d"],
    positions: Float[Tensor, "B T 2"],
    saliency: Float[Tensor, "B H T"],
    config: ClusterConfig = DEFAULT,
    *,
    views: int = 2,
    seeds: Int[Tensor, "B H K"] | None = None,
    keys: Int64[Tensor, "B"] | None = None,
) -> Clusters:
    """Cluster the joined tokens of an image's views by optimal transport, and choose K.

    It is what a training step does with the teacher's tokens: centroids start at some of the
    tokens, the nearest two merge until two are left, and the K of the lowest transport cost is
    taken, for each image and head by itself.

    Args:
        tokens: B images, H heads, T tokens of width d: all tokens of the first view, then those
            of the next. They need not have unit length.
        positions: (x, y) of each token in the frame of the original image, whose longer side is
            1; by them tokens of two views that show the same place are near to each other.
        saliency: How much each token counts; over the tokens of an image and head it sums to 1
            (in the variant `released` it is the cosine with the CLS token of the token's view).
        config: `ClusterConfig`: K at the start, the weight of positions, the variant, and more.
        views: The number of views that the tokens come from; 1 clusters a whole image.
        seeds: The tokens at which the centroids start, `config.k_start` different ones for each
            image and head.
        keys: A number an image, from which the starting tokens are drawn if there are no `seeds`;
            by default 0, 1, 2, …

    Returns:
        `Clusters`: `assignments` "M B H N K" (soft, padded with zeros to K_start), `valid`
            "B H K" (the clusters that every view has), `cost` and the chosen `count` "B H".

    Raises:
        UserError: In one line, if shapes, dtypes or devices do not fit each other, if a value is
            not finite, or if saliency, seeds or keys are not as told above. To see the values it
            waits for the GPU.

    Examples:
        >>> import croc, torch
        >>> tokens = torch.randn(1, 6, 2 * 49, 64)            # two views of 7 × 7 patches
        >>> positions = torch.rand(1, 2 * 49, 2)
        >>> saliency = torch.full((1, 6, 2 * 49), 1 / (2 * 49))
        >>> found = croc.cluster(tokens, positions, saliency, croc.ClusterConfig(k_start=8))
        >>> found.assignments.shape                           # view, image, head, patch, cluster
        torch.Size([2, 1, 6, 49, 8])
        >>> bool((found.count >= found.valid.sum(dim=-1)).all())
        True
    """
    check_kinds(tokens, positions, saliency)
    check_shapes(tokens, positions, saliency, views)
    check_finite(tokens, positions, saliency)
    if config.variant == "paper":
        check_shares(saliency)
    if seeds is not None:
        check_seeds(seeds, saliency, config.k_start)
    if keys is not None:
        check_keys(keys, tokens)
    if seeds is None and keys is None:
        keys = torch.arange(len(tokens), device=tokens.device)
    return cluster_joined(tokens, positions, saliency, config, views=views, seeds=seeds, keys=keys)


def check_kinds(tokens: Any, positions: Any, saliency: Any) -> None:
    """Floats of one dtype, in one place."""
    for name, values in (("tokens", tokens), ("positions", positions), ("saliency", saliency)):
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise UserError(f"{name} must be a tensor of floats, not {_kind(values)}")
        if values.dtype != tokens.dtype:
            raise UserError(f"tokens are of {tokens.dtype}, {name} of {values.dtype}: convert one")
        _check_device(name, values, tokens)


def check_shapes(tokens: Tensor, positions: Tensor, saliency: Tensor, views: int) -> None:
    """In a training step nobody asks; here a line is worth more than an einops error."""
    if tokens.ndim != 4:
        raise UserError(f"tokens are images × heads × tokens × width, not {_say(tokens)}")
    images, heads, count, _ = tokens.shape
    if views < 1 or count % views:
        raise UserError(f"{count} tokens cannot come from {views} views of one size")
    _check_shape("positions", positions, images, count, 2)
    _check_shape("saliency", saliency, images, heads, count)


def check_finite(tokens: Tensor, positions: Tensor, saliency: Tensor) -> None:
    for name, values in (("tokens", tokens), ("positions", positions), ("saliency", saliency)):
        if not values.isfinite().all():
            raise UserError(f"{name} must be finite, and hold a nan or an inf")


def check_shares(saliency: Tensor) -> None:
    """In the variant `paper` it is a distribution; half precision may round each value."""
    if (saliency < 0).any():
        raise UserError(f"saliency must not be negative: {float(saliency.min()):.4g}")
    sums = saliency.sum(dim=-1, dtype=torch.float32)
    wrong = sums[(sums - 1).abs() > max(SUM_TOLERANCE, torch.finfo(saliency.dtype).eps)]
    if len(wrong):
        raise UserError(
            "saliency must sum to 1 over the tokens of an image and head, not to "
            f"{float(wrong[0]):.4g}: divide it by its sum"
        )


def check_seeds(seeds: Any, saliency: Tensor, k_start: int) -> None:
    """Different tokens that there are."""
    if not isinstance(seeds, Tensor) or seeds.dtype not in INTEGERS:
        raise UserError(f"seeds must be a tensor of integers, not {_kind(seeds)}")
    images, heads, count = saliency.shape
    _check_shape("seeds", seeds, images, heads, k_start)
    _check_device("seeds", seeds, saliency)
    if ((seeds < 0) | (seeds >= count)).any():
        raise UserError(f"seeds are numbers of tokens, from 0 to {count - 1}")
    if (seeds.sort(dim=-1).values.diff(dim=-1) == 0).any():
        raise UserError("seeds must differ from each other within an image and head")


def check_keys(keys: Any, tokens: Tensor) -> None:
    if not isinstance(keys, Tensor) or keys.dtype != torch.int64:
        raise UserError(f"keys must be a tensor of torch.int64, not {_kind(keys)}")
    _check_shape("keys", keys, len(tokens))
    _check_device("keys", keys, tokens)


def _check_shape(name: str, values: Tensor, *shape: int) -> None:
    if values.shape != shape:
        raise UserError(f"{name} must be {' × '.join(map(str, shape))}, not {_say(values)}")


def _check_device(name: str, values: Tensor, others: Tensor) -> None:
    if values.device != others.device:
        raise UserError(f"tokens are on {others.device}, {name} on {values.device}: move one")


def _kind(values: object) -> str:
    return str(values.dtype) if isinstance(values, Tensor) else f"a {type(values).__name__}"


def _say(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "one number"
