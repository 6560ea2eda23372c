"""The `paper` clustering on a GPU: one program (clustering_program.py) per image and head."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from croc.config import ClusterConfig
from croc.kernels.clustering_program import program
from croc.method.types import Clusters

MOST_TOKENS = 512
MOST_CENTROIDS = 32
# Two programs share a multiprocessor. `arch` keeps Triton from Hopper's wgmma: with operands as
# narrow as these it reads beyond the end of shared memory (compute-sanitizer, Triton 3.6), and
# where it does not, it is slower. The machine code is still compiled for the actual GPU.
OPTIONS = {"num_warps": 4, "maxnreg": 255, "arch": "sm80"}
# λ times the range of the cost up to which the plan's factors stay within float32: from the middle
# of the range, exp() reaches 2^±88, and u and v have room for the rest. λ_pos 4 at λ 20 needs 120.
NARROW = 122.0


def fits(tokens: Float[Tensor, "M B H N d"], config: ClusterConfig) -> bool:
    """Whether the kernel supports these tokens; if not, the PyTorch reference is used."""
    if (config.variant, config.sizes) != ("paper", "balanced") or tokens.dtype == torch.float64:
        return False
    T, d = tokens.shape[0] * tokens.shape[3], tokens.shape[4]
    if T > MOST_TOKENS or config.k_start > MOST_CENTROIDS:
        return False
    return _needed(T, d, config.k_start, tokens.dtype) <= _room(tokens.device)


def _needed(T: int, d: int, k: int, dtype: torch.dtype) -> int:
    """Shared memory of a program, in bytes: the tokens and the plan, each in parts of bfloat16."""
    parts = 1 if dtype == torch.bfloat16 else 2
    return 2 * _padded(T, 64) * (parts * _padded(d, 16) + (parts + 1) * _padded(k, 8))


@torch.compiler.assume_constant_result
def _room(device: torch.device) -> int:
    """Shared memory that a program may use, in bytes."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def cluster_views(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
    seeds: Int[Tensor, "B H K"],
    config: ClusterConfig,
) -> Clusters:
    """The clusters of tokens that need not be joined, in any strides."""
    return Clusters(*_cluster(tokens, positions, saliency, seeds, *settings(config)))


def settings(config: ClusterConfig) -> tuple[list[float], list[int]]:
    """The factors of cosine and distance / S in the cost, the middle of its range and λ; and the
    iterations, which K may be chosen, and whether exp(−λ cost) may leave float32."""
    weight = config.position_weight
    factors, range_ = ([-1.0, weight], weight + 2) if math.isfinite(weight) else ([0.0, 1.0], 1.0)
    middle = weight / 2 if math.isfinite(weight) else 0.5
    smallest, largest = config.k_range
    return (
        [*factors, middle, config.sharpness],
        [config.sinkhorn_iterations, largest, smallest, int(config.sharpness * range_ > NARROW)],
    )


def launch(
    tokens, positions, saliency, seeds, factors, choice, **options: Any
) -> tuple[Tensor, ...]:
    """Launch the program with OPTIONS, updated by `options`."""
    M, B, H, N, d = tokens.shape
    T, K = _padded(M * N, 64), seeds.shape[-1]
    inputs = tokens, positions, saliency, seeds
    outputs = _empty(*inputs, factors, choice)
    best = tokens.new_empty(B * H, _padded(d, 16) + 3, K, dtype=torch.float32)
    strides = [stride for tensor in inputs for stride in tensor.stride()]
    sizes = M, B, H, N, d, K, T, _padded(d, 16)
    exact = tokens.dtype == torch.bfloat16
    with torch.cuda.device_of(tokens):
        programs: Any = program[(B * H,)]
        arguments = *inputs, *outputs, best, *strides, *factors, *choice, *sizes, exact
        programs(*arguments, **(OPTIONS | options))
    return outputs


def _empty(tokens, positions, saliency, seeds, factors, choice):
    """Assignments, valid, cost and count, uninitialized."""
    (M, B, H, N, _), K = tokens.shape, seeds.shape[-1]
    return (
        tokens.new_empty(M, B, H, N, K, dtype=torch.float32),
        tokens.new_empty(B, H, K, dtype=torch.bool),
        tokens.new_empty(B, H, dtype=torch.float32),
        tokens.new_empty(B, H, dtype=torch.long),
    )


# One operator to torch.compile, which need not look inside.
_cluster = torch.library.custom_op(
    "croc::cluster",
    launch,
    mutates_args=(),
    schema="(Tensor tokens, Tensor positions, Tensor saliency, Tensor seeds, float[] factors, "
    "int[] choice) -> (Tensor, Tensor, Tensor, Tensor)",
)
_cluster.register_fake(_empty)


def _padded(size: int, least: int) -> int:
    """The power of two that a block of this size takes."""
    padded = least
    while padded < size:
        padded *= 2
    return padded
