"""Mean, deviation and covariance of features that are seen a batch at a time."""

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor


class Moments:
    """Sums about the first batch's mean: squares of far-off features would drown what varies."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, features: Float[Tensor, "B C rows columns"], covariance: bool = False) -> None:
        flat = features.float().movedim(1, -1).flatten(0, -2)
        if self.count == 0:
            self._origin = flat.mean(dim=0)
            zeros = torch.zeros_like(self._origin, dtype=torch.float64)
            self._sum, self._squares = zeros, zeros.clone()
            self._products = zeros.new_zeros((len(zeros),) * 2) if covariance else None
        flat = flat - self._origin
        self.count += len(flat)
        self._sum += flat.sum(dim=0).double()
        self._squares += flat.square().sum(dim=0).double()
        if self._products is not None:
            self._products += (flat.mT @ flat).double()

    @property
    def mean(self) -> Float32[Tensor, "C"]:
        return (self._origin.double() + self._sum / self.count).float()

    @property
    def deviation(self) -> Float32[Tensor, "C"]:
        """Of the sample; never 0, so that one may divide by it."""
        spread = self._squares - self._sum.square() / self.count
        return (spread / max(1, self.count - 1)).clamp_min(0).sqrt().clamp_min(1e-6).float()

    @property
    def covariance(self) -> Float64[Tensor, "C C"]:
        assert self._products is not None
        return (self._products - torch.outer(self._sum, self._sum) / self.count) / self.count
