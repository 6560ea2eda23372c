"""Masked patches, as in iBOT: the student does not see them and predicts the teacher's tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from croc.method.randomness import uniform
from croc.method.views import VIEWS

MASKED_IMAGES = 0.5
"""Probability that any patches of an image are hidden, as in iBOT."""


@dataclass(frozen=True)
class Mask:
    """Which patches of each view the student does not see."""

    hidden: Bool[Tensor, "M B N"]
    index: Int64[Tensor, "M B V"]
    """Indices of V patches of every view, so that shapes are fixed; they are hidden if `valid`."""
    valid: Bool[Tensor, "B V"]
    """Whether they are hidden: in half of the images."""


def draw_mask(keys: Int64[Tensor, "B"], patches: int, share: float) -> Mask:
    """Draw a fraction of the patches of each view, independently of the other view."""
    draws = uniform(keys, "hidden patches", VIEWS, patches).transpose(0, 1)
    index = draws.argsort(dim=-1)[..., : max(1, round(share * patches))]
    masked = uniform(keys, "masked image", 1) < MASKED_IMAGES
    hidden = torch.zeros_like(draws, dtype=torch.bool).scatter(2, index, True) & masked
    return Mask(hidden, index, masked.expand(-1, index.shape[-1]))


def at_hidden(
    patches: Float[Tensor, "M B N D"], mask: Mask, cls: Float[Tensor, "M B D"]
) -> Float[Tensor, "M B V D"]:
    """The tokens at `mask.index`, scaled to the mean length of the image's CLS tokens."""
    tokens = patches.take_along_dim(mask.index[..., None], dim=2).float()
    return F.normalize(tokens, dim=-1) * cls.float().norm(dim=-1).mean(dim=0)[:, None, None]
