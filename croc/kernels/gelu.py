"""The exact GELU behind a linear layer: one pass over the hidden units each way.

With PyTorch's erf, the arithmetic takes longer than the memory accesses, and the gradient of the
bias needs another pass. Here Φ is cheap, and the pass that computes the gradient of the hidden
units also sums it. PyTorch computes the matrix products, visible to torch.compile.
"""

import math
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

# Forward, a program processes BLOCK values; backward, ROWS rows of COLUMNS values, STEP rows at a
# time, while the next STAGES - 1 steps are being loaded (without this, the compiler loads values
# only when they are needed). Both start with the values that the preceding matrix product wrote
# last, since these are still in the cache.
FORWARD = {"BLOCK": 4096, "num_warps": 4}
BACKWARD = {
    "ROWS": 64, "STEP": 8, "COLUMNS": 256, "STAGES": 3, "num_warps": 4
}  # fmt: skip

# e^{-x²/2} = 2^{-(ROOT x)²}, and the density of the normal distribution is DENSITY times as much.
ROOT = tl.constexpr(math.sqrt(math.log2(math.e) / 2))
DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))


def launch_forward(hidden: Tensor, bias: Tensor | None = None, **changes: Any) -> Tensor:
    """GELU(hidden), which includes the bias; launched with FORWARD, updated by `changes`."""
    options = FORWARD | changes
    hidden = hidden.contiguous()
    activations = torch.empty_like(hidden)
    with torch.cuda.device_of(hidden):
        programs: Any = _forward[(triton.cdiv(hidden.numel(), options["BLOCK"]),)]
        programs(hidden, activations, hidden.numel(), **options)
    return activations


def launch_backward(hidden: Tensor, grad: Tensor, **changes: Any) -> tuple[Tensor, Tensor]:
    """The gradient of `hidden`, and its sums over blocks of rows; with BACKWARD and `changes`."""
    options = BACKWARD | changes
    hidden, grad = hidden.contiguous(), grad.contiguous()
    gradient, sums = _empty(hidden, grad, options["ROWS"])
    width = hidden.shape[-1]
    with torch.cuda.device_of(hidden):
        programs: Any = _backward[(len(sums) * triton.cdiv(width, options["COLUMNS"]),)]
        programs(hidden, grad, gradient, sums, hidden.numel() // width, width, **options)
    return gradient, sums


def _empty(hidden: Tensor, grad: Tensor, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Uninitialized outputs of the backward pass."""
    width = hidden.shape[-1]
    rows = rows or BACKWARD["ROWS"]
    blocks = (hidden.numel() // width + rows - 1) // rows
    gradient = hidden.new_empty(hidden.shape)
    return gradient, hidden.new_empty(blocks, width, dtype=torch.float32)


gelu = torch.library.custom_op(
    "croc::gelu", launch_forward, mutates_args=(), schema="(Tensor hidden, Tensor bias) -> Tensor"
)
gelu.register_fake(lambda hidden, bias: hidden.new_empty(hidden.shape))
_gelu_backward = torch.library.custom_op(
    "croc::gelu_backward",
    launch_backward,
    mutates_args=(),
    schema="(Tensor hidden, Tensor grad) -> (Tensor, Tensor)",
)
_gelu_backward.register_fake(_empty)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    hidden, bias = inputs
    ctx.save_for_backward(hidden)
    ctx.bias_dtype = bias.dtype


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gradient, sums = _gelu_backward(*ctx.saved_tensors, grad)
    return gradient, sums.sum(dim=0).to(ctx.bias_dtype)


gelu.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
@no_type_check
def _forward(
    hidden_at, activations_at, count, BLOCK: tl.constexpr
):  # fmt: skip
    place = _turn().to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    x = tl.load(hidden_at + place, mask=real, other=0.0).to(tl.float32)
    bell, mills = _tail(x)
    gelu = tl.maximum(x, 0.0) - tl.abs(x) * (bell * mills)
    tl.store(activations_at + place, gelu, mask=real)


@triton.jit
@no_type_check
def _backward(
    hidden_at, grad_at, gradient_at, sums_at, rows, width,
    ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    turn, across = _turn(), tl.cdiv(width, COLUMNS)
    block = turn // across
    column = turn % across * COLUMNS + tl.arange(0, COLUMNS)
    start = block.to(tl.int64) * ROWS * width
    sums = tl.zeros((STEP, COLUMNS), tl.float32)
    for first in tl.range(0, ROWS, STEP, num_stages=STAGES):
        row = first + tl.arange(0, STEP)[:, None]
        real = (block * ROWS + row < rows) & (column < width)
        place = start + row * width + column
        x = tl.load(hidden_at + place, mask=real, other=0.0).to(tl.float32)
        grad = tl.load(grad_at + place, mask=real, other=0.0).to(tl.float32)
        bell, mills = _tail(x)
        below = bell * (mills - tl.abs(x) * DENSITY)  # the derivative at -|x|
        gradient = grad * tl.where(x > 0, 1 - below, below)
        tl.store(gradient_at + place, gradient, mask=real)
        sums += gradient
    tl.store(sums_at + block * width + column, tl.sum(sums, axis=0), mask=column < width)


@triton.jit
@no_type_check
def _turn():
    """The last program first."""
    return tl.num_programs(0) - 1 - tl.program_id(0)


@triton.jit
@no_type_check
def _tail(x):
    """e^{-x²/2} and Φ(-|x|) / e^{-x²/2}, whose product underflows float32 long before |x| is 30.

    The second is a polynomial in 1 / (|x| + 2.46), fitted over |x| < 14. Besides rounding errors,
    the error of Φ is 4e-8, and that of its tail 2.4e-4, a sixteenth of bfloat16's rounding. The
    reciprocal is computed as a square, because Triton's division takes three instructions more.
    """
    root = tl.rsqrt(tl.abs(x) + 2.46)
    t = root * root
    mills = t * 12.1824269 - 21.6551822
    mills = mills * t + 10.9670678
    mills = mills * t + 0.661982427
    mills = mills * t + 1.09359781
    mills = mills * t + 0.395460772
    scaled = x * ROOT
    return tl.exp2(-scaled * scaled), mills * t
