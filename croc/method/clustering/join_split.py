"""Join the tokens of the views, cluster them, split the clusters into the views (section 3.2 of the
paper), and pool the tokens of each view by cluster.

`paper.py` and `released.py` contain the clustering itself.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Int64
from torch import Tensor

from croc import kernels
from croc.config import ClusterConfig
from croc.errors import UserError
from croc.method.clustering.paper import Step, draw_seeds, paper_steps
from croc.method.clustering.released import SALIENCY_TEMPERATURE, released_steps
from croc.method.types import Clusters


@torch.no_grad()
def cluster(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
    config: ClusterConfig,
    *,
    seeds: Int[Tensor, "B H K"] | None = None,
    keys: Int64[Tensor, "B"] | None = None,
) -> Clusters:
    """Cluster each image's and head's tokens of all views jointly; K is chosen for each of them.

    `saliency` is the CLS attention divided by the number of views in `paper` (so it sums to 1) and
    the cosine with the CLS token of the token's own view in `released`. The initial centroids are
    the tokens `seeds` (counted view by view), or are drawn with the samples' `keys`.
    """
    with torch.autocast(tokens.device.type, enabled=False):
        positions, saliency, seeds = prepare(tokens, positions, saliency, config, seeds, keys)
        kernel = kernels.find("clustering", tokens)
        if kernel is not None and kernel.fits(tokens, config):
            return kernel.cluster_views(tokens, positions, saliency, seeds, config)
        steps = merge_steps(tokens, positions, saliency, seeds, config)
        return split(*select_k(steps, config), config, views=len(tokens))


def prepare(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
    config: ClusterConfig,
    seeds: Int[Tensor, "B H K"] | None,
    keys: Int64[Tensor, "B"] | None,
) -> tuple[Float[Tensor, "M B N 2"], Float[Tensor, "M B H N"], Int[Tensor, "B H K"]]:
    """Positions and saliency, at least in float32, and seeds: those given, or drawn by saliency."""
    check_k_start(config.k_start, tokens.shape[0] * tokens.shape[3])
    positions, saliency = at_least_float32(positions), at_least_float32(saliency)
    if seeds is None:
        if keys is None:
            raise UserError("cluster() needs seeds, or the keys to draw them from")
        probability = rearrange(saliency, "m b h n -> b h (m n)")
        if config.variant == "released":
            probability = (probability / SALIENCY_TEMPERATURE).softmax(dim=-1)
        seeds = draw_seeds(probability, config.k_start, keys)
    return positions, saliency, seeds


def check_k_start(k_start: int, tokens: int) -> None:
    if k_start > tokens:
        raise UserError(
            f"--cluster.k-start {k_start} is more than the {tokens} tokens of an image's views; "
            "lower it or enlarge the views"
        )


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def merge_steps(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
    seeds: Int[Tensor, "B H K"],
    config: ClusterConfig,
) -> Iterator[Step]:
    """Join the views, and cluster with K_start, K_start − 1, … 2 centroids, as the variant does."""
    joined = join(at_least_float32(tokens), positions, saliency)
    if config.variant == "released":
        return released_steps(*joined, seeds.long(), config, views=len(tokens))
    return paper_steps(*joined, seeds.long(), config)


def join(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
) -> tuple[Float[Tensor, "B H T d"], Float[Tensor, "B T 2"], Float[Tensor, "B H T"]]:
    """The tokens of all views as one set, of unit length, with their positions and saliency."""
    return (
        F.normalize(rearrange(tokens, "m b h n d -> b h (m n) d"), dim=-1),
        rearrange(positions, "m b n c -> b (m n) c"),
        rearrange(saliency, "m b h n -> b h (m n)"),
    )


def select_k(
    steps: Iterator[Step], config: ClusterConfig
) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H"], Int[Tensor, "B H"]]:
    """For each image and head, the clustering of the lowest cost: assignments (padded), cost, K."""
    smallest, largest = config.k_range
    assignments = cost = count = None
    for step in steps:
        k = step.assignments.shape[-1]
        if not smallest <= k <= largest:
            continue
        padded = F.pad(step.assignments, (0, config.k_start - k))
        if assignments is None or cost is None or count is None:
            assignments, cost = padded, step.cost
            count = torch.full_like(step.cost, k, dtype=torch.long)
        else:
            better = step.cost < cost
            assignments = torch.where(better[..., None, None], padded, assignments)
            cost = torch.where(better, step.cost, cost)
            count = torch.where(better, k, count)
    assert assignments is not None
    assert cost is not None
    assert count is not None
    return assignments, cost, count


def split(
    assignments: Float[Tensor, "B H T K"],
    cost: Float[Tensor, "B H"],
    count: Int[Tensor, "B H"],
    config: ClusterConfig,
    views: int,
) -> Clusters:
    """Split into views; prune clusters that have no token in one of the views."""
    strongest = assignments.amax(dim=-1, keepdim=True)
    if config.variant == "released":  # ties all count, and only the strongest entries stay
        hard = (assignments == strongest) & (assignments > 0)
        assignments = assignments * hard
    else:
        hard = F.one_hot(assignments.argmax(dim=-1), assignments.shape[-1]).bool()
    present = rearrange(hard, "b h (m n) k -> m b h n k", m=views).any(dim=-2)
    not_padding = torch.arange(assignments.shape[-1], device=count.device) < count[..., None]
    return Clusters(
        assignments=rearrange(assignments, "b h (m n) k -> m b h n k", m=views),
        valid=present.all(dim=0) & not_padding,
        cost=cost,
        count=count,
    )


def pool(
    patches: Float[Tensor, "M B N D"],
    assignments: Float[Tensor, "M B H N K"],
    cls: Float[Tensor, "M B D"],
    config: ClusterConfig,
) -> Float[Tensor, "M B H K D"]:
    """patchesᵀ · assignments, scaled to the length that the shared head expects from CLS tokens.

    centroid[m, b, h, k] = Σ_n assignments[m, b, h, n, k] · patches[m, b, n], to unit length,
    times the mean length of the image's CLS tokens (`released`: of all CLS tokens).
    """
    centroids = torch.einsum("mbnd,mbhnk->mbhkd", patches, assignments.to(patches.dtype)).float()
    lengths = cls.float().norm(dim=-1)
    if config.variant == "released":
        return F.normalize(centroids, dim=-1) * lengths.mean()
    return F.normalize(centroids, dim=-1) * lengths.mean(dim=0)[:, None, None, None]


def softness(
    assignments: Float[Tensor, "M B H N K"],
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
    """How soft the assignments are: effective clusters and largest share, averaged over tokens.

    With p a token's row divided by its sum, they are exp(entropy of p) and max(p): 1 and 1 for
    hard assignments, K and 1/K for uniform ones. Padding columns are zero and add nothing.
    """
    tiny = torch.finfo(assignments.dtype).tiny
    shares = assignments / assignments.sum(dim=-1, keepdim=True).clamp_min(tiny)
    effective = torch.special.entr(shares).sum(dim=-1).exp()
    return effective.mean(dim=(0, 3)), shares.amax(dim=-1).mean(dim=(0, 3))
