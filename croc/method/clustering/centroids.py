"""Pool the patch tokens of a view into the centroids of its clusters."""

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
    """patchesᵀ · assignments, brought to the length that the shared head knows from CLS tokens.

    centroid[m, b, h, k] = Σ_n assignments[m, b, h, n, k] · patches[m, b, n], to unit length,
    times the mean length of the image's CLS tokens (`released`: of all CLS tokens).
    """
    centroids = torch.einsum("mbnd,mbhnk->mbhkd", patches, assignments.to(patches.dtype)).float()
    lengths = cls.float().norm(dim=-1)
    if config.variant == "released":
        return F.normalize(centroids, dim=-1) * lengths.mean()
    return F.normalize(centroids, dim=-1) * lengths.mean(dim=0)[:, None, None, None]
