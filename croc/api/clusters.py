"""`croc.cluster`: the method's own clustering, on tokens from wherever you have them."""

from jaxtyping import Float, Int, Int64
from torch import Tensor, arange

from croc.clustering import cluster as cluster_joined
from croc.config import ClusterConfig
from croc.errors import UserError
from croc.types import Clusters

DEFAULT = ClusterConfig()


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
        saliency: How much each token counts; over an image's tokens it sums to 1 (in the variant
            `released` it is the cosine with the CLS token of the token's view).
        config: `ClusterConfig`: K at the start, the weight of positions, the variant, and more.
        views: The number of views that the tokens come from; 1 clusters a whole image.
        seeds: The tokens at which the centroids start, `config.k_start` of them.
        keys: A number an image, from which the starting tokens are drawn if there are no `seeds`;
            by default 0, 1, 2, …

    Returns:
        `Clusters`: `assignments` "M B H N K" (soft, padded with zeros to K_start), `valid`
            "B H K" (the clusters that every view has), `cost` and the chosen `count` "B H".

    Raises:
        UserError: In one line, if shapes do not fit each other.

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
    check_shapes(tokens, positions, saliency, views)
    if seeds is None and keys is None:
        keys = arange(len(tokens), device=tokens.device)
    return cluster_joined(tokens, positions, saliency, config, views=views, seeds=seeds, keys=keys)


def check_shapes(tokens: Tensor, positions: Tensor, saliency: Tensor, views: int) -> None:
    """In a training step nobody asks; here a line is worth more than an einops error."""
    if tokens.ndim != 4:
        raise UserError(f"tokens are images × heads × tokens × width, not {_say(tokens)}")
    images, heads, count, _ = tokens.shape
    if views < 1 or count % views:
        raise UserError(f"{count} tokens cannot come from {views} views of one size")
    if positions.shape != (images, count, 2):
        raise UserError(f"positions must be {images} × {count} × 2, not {_say(positions)}")
    if saliency.shape != (images, heads, count):
        raise UserError(f"saliency must be {images} × {heads} × {count}, not {_say(saliency)}")


def _say(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "one number"
