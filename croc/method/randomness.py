"""Random numbers keyed by the sample, not drawn from a stream.

A sample's key is a hash of (seed, epoch, index), and every draw for the sample is a hash of its key
and a purpose. So draws do not depend on how batches are split, the number of processes, the device
or a resume. The hash is splitmix64's finalizer, in wrapping int64 arithmetic.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def sample_key(seed: int, epoch: int, index: int) -> int:
    """The key of one sample in one epoch: a signed 64-bit number."""
    value = _GOLDEN
    for part in (seed, epoch, index):
        value = _mix_int(value + _GOLDEN * (part + 1))
    return _signed(value)


def _shift(value: Int64[Tensor, "..."], bits: int) -> Int64[Tensor, "..."]:
    """Logical shift right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    value = (value ^ _shift(value, 30)) * _signed(_MIX_1)
    value = (value ^ _shift(value, 27)) * _signed(_MIX_2)
    return value ^ _shift(value, 31)


def derive(keys: Int64[Tensor, "B"], purpose: str) -> Int64[Tensor, "B"]:
    """Separate keys for a purpose, so that two purposes never share a draw."""
    offset = _GOLDEN
    for letter in purpose:
        offset = _mix_int(offset + _GOLDEN * (ord(letter) + 1))
    return _mix(keys + _signed(offset))


def uniform(keys: Int64[Tensor, "B"], purpose: str, *shape: int) -> Float[Tensor, "B *shape"]:
    """Uniform numbers in (0, 1), float32, of the given shape for each key."""
    # The xor does nothing, but keeps torch.compile from multiplying in its own index type,
    # which the constant overflows.
    counters = torch.arange(1, math.prod(shape) + 1, device=keys.device) ^ 0
    hashed = _mix(derive(keys, purpose)[:, None] + counters * _signed(_GOLDEN))
    return ((_shift(hashed, 41).float() + 0.5) / (1 << 23)).reshape(-1, *shape)
