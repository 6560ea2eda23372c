"""How soft assignments are."""

import torch
from jaxtyping import Float
from torch import Tensor


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
