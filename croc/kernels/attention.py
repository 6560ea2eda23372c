"""Attention over few tokens, computed from the packed output of the qkv layer; so is its gradient.

One Triton program computes a whole image and head. There are so few tokens that the scores of a row
fit on the chip. This needs no running maximum and no sums over programs, and the gradients of
queries, keys and values are stored as the layer expects them. The backward pass computes the scores
twice, by rows for the queries and by columns for keys and values. A single pass would be slower,
because it needs more registers than there are.
"""

import math
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

MOST_TOKENS = 272
LEAST_TILE = 16  # rows: the minimum of a tensor core
# The tokens are kept on the chip in tiles whose sizes are powers of two, at most these.
FORWARD_TILE, BACKWARD_TILE = 128, 64
FORWARD = {"ROWS": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"ROWS": 64, "num_warps": 4, "ROW_STAGES": 2, "COLUMN_STAGES": 2}
LOG2_E = tl.constexpr(math.log2(math.e))


def fits(tokens: int, head_width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels support this: heads of width 64, on a Hopper; if not, torch is used."""
    few = 0 < tokens <= MOST_TOKENS and head_width == 64
    return few and dtype in (torch.bfloat16, torch.float16) and _is_hopper(device)


@torch.compiler.assume_constant_result
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def packed_attention(qkv: Float[Tensor, "B N W"], heads: int) -> Float[Tensor, "B N D"]:
    """softmax(q kᵀ / √d) v of "b n (3 h d)", as "b n (h d)"."""
    return _attention(qkv, heads)[0]


def launch(qkv, heads, **options: Any) -> tuple[Tensor, Tensor]:
    """The output, and log2 of each row's sum of powers; with FORWARD, updated by `options`."""
    qkv = qkv.contiguous()
    out, log_sums = _empty(qkv, heads)
    with torch.cuda.device_of(qkv):
        programs: Any = _forward[(len(qkv) * heads,)]
        sizes = _sizes(qkv, heads, FORWARD_TILE)
        programs(qkv, out, log_sums, *sizes, **(FORWARD | options))
    return out, log_sums


def launch_backward(qkv, out, log_sums, grad, heads, **options: Any) -> Tensor:
    """The gradient of qkv; launched with BACKWARD, updated by `options`."""
    qkv, grad = qkv.contiguous(), grad.contiguous()
    inner, packed = torch.empty_like(log_sums), torch.empty_like(qkv)
    with torch.cuda.device_of(qkv):
        programs: Any = _backward[(len(qkv) * heads,)]
        sizes = _sizes(qkv, heads, BACKWARD_TILE)
        programs(qkv, out, log_sums, grad, inner, packed, *sizes, **(BACKWARD | options))
    return packed


def _sizes(qkv, heads, most):
    """Scale, heads, tokens, d, and the tiles: the largest ones, then smaller powers of two."""
    tokens, d = qkv.shape[1], qkv.shape[2] // (3 * heads)
    tiles, left = [], triton.cdiv(tokens, LEAST_TILE) * LEAST_TILE
    while left:
        tiles.append(min(most, 1 << (left.bit_length() - 1)))
        left -= tiles[-1]
    return d**-0.5, heads, tokens, d, tuple(tiles)


def _empty(qkv, heads):
    """Uninitialized outputs."""
    B, N, W = qkv.shape
    return qkv.new_empty(B, N, W // 3), qkv.new_empty(B, heads, N, dtype=torch.float32)


def _save(ctx, inputs, output):
    qkv, ctx.heads = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(qkv, *output)


def _differentiate(ctx, grad, _):
    return _attention_backward(*ctx.saved_tensors, grad, ctx.heads), None


# Two operators to torch.compile, which need not look inside.
_attention = torch.library.custom_op(
    "croc::attention",
    launch,
    mutates_args=(),
    schema="(Tensor qkv, int heads) -> (Tensor, Tensor)",
)
_attention_backward = torch.library.custom_op(
    "croc::attention_backward",
    launch_backward,
    mutates_args=(),
    schema="(Tensor qkv, Tensor out, Tensor log_sums, Tensor grad, int heads) -> Tensor",
)
_attention.register_fake(_empty)
_attention_backward.register_fake(lambda qkv, *_: qkv.new_empty(qkv.shape))
_attention.register_autograd(_differentiate, setup_context=_save)


@triton.jit
@no_type_check
def _forward(
    qkv_at, out_at, log_sums_at,
    scale, H: tl.constexpr, N: tl.constexpr, D: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    WIDE: tl.constexpr = 3 * H * D
    qkv_at += b * N * WIDE + h * D
    out_at += b * N * H * D + h * D
    log_sums_at += (b * H + h) * N
    keys = _load_tiles(qkv_at + H * D, WIDE, N, D, TILES)
    values = _load_tiles(qkv_at + 2 * H * D, WIDE, N, D, TILES)
    for start in range(0, N, ROWS):
        queries = _load(qkv_at, start, WIDE, N, D, ROWS)
        scores = ()
        first: tl.constexpr = 0
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        for i in tl.static_range(len(TILES)):
            score = tl.dot(queries, keys[i].T)
            if first + TILES[i] > N:
                score = tl.where(first + tl.arange(0, TILES[i]) < N, score, float("-inf"))
            largest = tl.maximum(largest, tl.max(score, axis=1))
            scores = scores + (score,)  # noqa: RUF005, Triton's tuples do not unpack
            first += TILES[i]
        shift = largest * (scale * LOG2_E)
        total = tl.zeros((ROWS,), tl.float32)
        out = tl.zeros((ROWS, D), tl.float32)
        for i in tl.static_range(len(TILES)):
            power = tl.exp2(scores[i] * (scale * LOG2_E) - shift[:, None])
            total += tl.sum(power, axis=1)
            out = tl.dot(power.to(queries.dtype), values[i], out)
        _store(out_at, out * (1 / total)[:, None], start, H * D, N, D, ROWS)
        n = start + tl.arange(0, ROWS)
        tl.store(log_sums_at + n, shift + tl.log2(total), mask=n < N)


@triton.jit
@no_type_check
def _backward(
    qkv_at, out_at, log_sums_at, grad_at, inner_at, packed_at,
    scale, H: tl.constexpr, N: tl.constexpr, D: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, ROW_STAGES: tl.constexpr, COLUMN_STAGES: tl.constexpr,
):  # fmt: skip
    """`inner`, each row's out · grad, is passed from the first loop to the second in memory."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    WIDE: tl.constexpr = 3 * H * D
    qkv_at += b * N * WIDE + h * D
    packed_at += b * N * WIDE + h * D
    out_at += b * N * H * D + h * D
    grad_at += b * N * H * D + h * D
    log_sums_at += (b * H + h) * N
    inner_at += (b * H + h) * N

    keys = _load_tiles(qkv_at + H * D, WIDE, N, D, TILES)
    values = _load_tiles(qkv_at + 2 * H * D, WIDE, N, D, TILES)
    for start in tl.range(0, N, ROWS, num_stages=ROW_STAGES):
        query = _load(qkv_at, start, WIDE, N, D, ROWS)
        grad = _load(grad_at, start, H * D, N, D, ROWS)
        out = _load(out_at, start, H * D, N, D, ROWS)
        n = start + tl.arange(0, ROWS)
        inner = tl.sum(grad.to(tl.float32) * out.to(tl.float32), axis=1)
        tl.store(inner_at + n, inner, mask=n < N)
        log_sum = tl.load(log_sums_at + n, mask=n < N, other=float("inf"))
        d_query = tl.zeros((ROWS, D), tl.float32)
        first: tl.constexpr = 0
        for i in tl.static_range(len(TILES)):
            score = tl.dot(query, keys[i].T)
            d_weight = tl.dot(grad, values[i].T)
            if first + TILES[i] > N:
                score = tl.where(first + tl.arange(0, TILES[i]) < N, score, float("-inf"))
            weight = tl.exp2(score * (scale * LOG2_E) - log_sum[:, None])
            d_score = weight * (d_weight - inner[:, None])
            d_query = tl.dot(d_score.to(query.dtype), keys[i], d_query)
            first += TILES[i]
        _store(packed_at, d_query * scale, start, WIDE, N, D, ROWS)

    tl.debug_barrier()  # threads read what others have written
    queries = _load_tiles(qkv_at, WIDE, N, D, TILES)
    grads = _load_tiles(grad_at, H * D, N, D, TILES)
    for start in tl.range(0, N, ROWS, num_stages=COLUMN_STAGES):
        key = _load(qkv_at + H * D, start, WIDE, N, D, ROWS)
        value = _load(qkv_at + 2 * H * D, start, WIDE, N, D, ROWS)
        d_key = tl.zeros((ROWS, D), tl.float32)
        d_value = tl.zeros((ROWS, D), tl.float32)
        begin: tl.constexpr = 0
        for i in tl.static_range(len(TILES)):
            # Rows beyond the last have weight 0, because their log sum is infinite.
            m = begin + tl.arange(0, TILES[i])
            log_sums = tl.load(log_sums_at + m, mask=m < N, other=float("inf"))
            inners = tl.load(inner_at + m, mask=m < N, other=0.0)
            weight = tl.exp2(tl.dot(key, queries[i].T) * (scale * LOG2_E) - log_sums)
            d_value = tl.dot(weight.to(key.dtype), grads[i], d_value)
            d_score = weight * (tl.dot(value, grads[i].T) - inners)
            d_key = tl.dot(d_score.to(key.dtype), queries[i], d_key)
            begin += TILES[i]
        _store(packed_at + H * D, d_key * scale, start, WIDE, N, D, ROWS)
        _store(packed_at + 2 * H * D, d_value, start, WIDE, N, D, ROWS)


@triton.jit
@no_type_check
def _load_tiles(at, STRIDE: tl.constexpr, N: tl.constexpr, D: tl.constexpr, TILES: tl.constexpr):
    tiles = ()
    start: tl.constexpr = 0
    for i in tl.static_range(len(TILES)):
        tiles = tiles + (_load(at, start, STRIDE, N, D, TILES[i]),)  # noqa: RUF005
        start += TILES[i]
    return tiles


@triton.jit
@no_type_check
def _load(
    at, start, STRIDE: tl.constexpr, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Rows of one head from `start` on; 0 beyond the last."""
    n = start + tl.arange(0, ROWS)
    return tl.load(at + n[:, None] * STRIDE + tl.arange(0, D), mask=n[:, None] < N, other=0.0)


@triton.jit
@no_type_check
def _store(
    at, rows, start, STRIDE: tl.constexpr, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    n = start + tl.arange(0, ROWS)
    at = at + n[:, None] * STRIDE + tl.arange(0, D)
    tl.store(at, rows.to(at.dtype.element_ty), mask=n[:, None] < N)
