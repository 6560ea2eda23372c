"""From assignments: the centroids of the clusters of a view, and how soft the assignments are."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from croc.config import ClusterConfig


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
    """How soft the assignments are: effective clusters and largest share, means over the tokens.

    With p a token's row divided by its sum, they are exp(entropy of p) and max(p): 1 and 1 for
    hard assignments, K and 1/K for uniform ones. Padding columns are zero and add nothing.
    """
    tiny = torch.finfo(assignments.dtype).tiny
    shares = assignments / assignments.sum(dim=-1, keepdim=True).clamp_min(tiny)
    effective = torch.special.entr(shares).sum(dim=-1).exp()
    return effective.mean(dim=(0, 3)), shares.amax(dim=-1).mean(dim=(0, 3))
