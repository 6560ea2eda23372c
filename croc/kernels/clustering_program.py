"""The whole `paper` clustering of one image and head, as one Triton program.

The same computation as clustering/paper.py, on the chip: the tokens are read once, and only the
chosen assignments are written. A centroid keeps its slot while others merge, and `alive` has a bit
for every slot in use. Slots are compacted only from time to time, which does not change the result,
because merging never reorders the remaining clusters.
"""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl

from croc.method.clustering.paper import LEAST_SALIENCY

LEAST = tl.constexpr(LEAST_SALIENCY)
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
LOG2_E = tl.constexpr(math.log2(math.e))
# The initial value of v. Only the product of u and v matters; with this value, neither leaves the
# range of float32, so that no pass needs logarithms unless the range of the cost is WIDE.
GAUGE = tl.constexpr(2.0**-32)
NOTHING = tl.constexpr(-1e30)  # stands for log(0), but is finite


@triton.jit
@no_type_check
def program(
    tokens_at, positions_at, saliency_at, seeds_at,
    assignments_at, valid_at, cost_at, count_at, best_at,
    tokens_m, tokens_b, tokens_h, tokens_n, tokens_d,
    positions_m, positions_b, positions_n, positions_c,
    saliency_m, saliency_b, saliency_h, saliency_n,
    seeds_b, seeds_h, seeds_k,
    semantic, positional, middle, sharpness,
    iterations, largest, SMALLEST: tl.constexpr, WIDE: tl.constexpr,
    M: tl.constexpr, B, H, N: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    T_PAD: tl.constexpr, D_PAD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    tokens_at += b * tokens_b + h * tokens_h
    positions_at += b * positions_b
    saliency_at += b * saliency_b + h * saliency_h
    t, dim = tl.arange(0, T_PAD), tl.arange(0, D_PAD)
    m, n, real = t // N, t % N, t < M * N

    at = tokens_at + (m * tokens_m + n * tokens_n)[:, None] + dim * tokens_d
    tokens = tl.load(at, mask=real[:, None] & (dim < D), other=0.0)
    wide = tokens.to(tl.float32)
    inverse_length = tl.rsqrt(tl.maximum(tl.sum(wide * wide, axis=1), 1e-24))
    rows = tl.load(saliency_at + m * saliency_m + n * saliency_n, mask=real, other=0.0)
    rows = tl.where(real, tl.maximum(rows.to(tl.float32), LEAST), 0.0)
    at = positions_at + m * positions_m + n * positions_n
    x = tl.load(at, mask=real, other=float("inf")).to(tl.float32)
    y = tl.load(at + positions_c, mask=real, other=float("inf")).to(tl.float32)
    left, top = tl.min(x, axis=0), tl.min(y, axis=0)
    x, y = tl.where(real, x - left, 0.0), tl.where(real, y - top, 0.0)
    right, bottom = tl.max(x, axis=0), tl.max(y, axis=0)
    # Positions are scaled so that a distance is its contribution to the cost.
    unit = positional / tl.maximum(tl.sqrt(right * right + bottom * bottom), 1e-12)
    out = assignments_at + (((m * B + b) * H + h) * N + n) * K
    high, low = _parts(tokens)
    points = high, low, inverse_length, x * unit, y * unit, rows
    factors = semantic, middle, sharpness * LOG2_E, iterations

    WIDTH: tl.constexpr = 8 if K <= 8 else (16 if K <= 16 else 32)
    slot = tl.arange(0, WIDTH)
    seed = tl.load(seeds_at + b * seeds_b + h * seeds_h + slot * seeds_k, mask=slot < K, other=0)
    m, n = seed // N, seed % N
    at = tokens_at + m * tokens_m + n * tokens_n + (dim * tokens_d)[:, None]
    centroids = _unit(tl.load(at, mask=(dim < D)[:, None], other=0.0).to(tl.float32))
    at = positions_at + m * positions_m + n * positions_n
    cx = (tl.load(at).to(tl.float32) - left) * unit
    cy = (tl.load(at + positions_c).to(tl.float32) - top) * unit
    importance = tl.load(saliency_at + m * saliency_m + n * saliency_n).to(tl.float32)
    state = centroids, cx, cy, tl.maximum(importance, LEAST)

    best, count = float("inf"), 0
    best_at += tl.program_id(0).to(tl.int64) * (D_PAD + 3) * K
    inputs = points, factors, best_at, largest
    if K > 16:
        state, best, count = _steps(inputs, state, best, count, 32, K, SMALLEST, WIDE, EXACT)
    if K > 8:
        state, best, count = _steps(inputs, state, best, count, 16, K, SMALLEST, WIDE, EXACT)
    state, best, count = _steps(inputs, state, best, count, 8, K, SMALLEST, WIDE, EXACT)

    tl.debug_barrier()  # threads read what others have written
    centroids, cx, cy, g = _recall(best_at, slot, slot < count, K, D_PAD)
    logits = _logits(_cost(points, centroids, cx, cy, factors, EXACT), factors) + g
    share = tl.exp2(logits - tl.max(logits, axis=1)[:, None])
    share = share * _inverse(tl.sum(share, axis=1))[:, None]
    tl.store(out[:, None] + slot, share, mask=real[:, None] & (slot < K))
    hard = (tl.argmax(share, axis=1)[:, None] == slot) & real[:, None]
    valid = slot < count
    for view in tl.static_range(M):
        seen = tl.max((hard & (t // N == view)[:, None]).to(tl.int32), axis=0)
        valid = valid & (seen > 0)
    pair = b * H + h
    tl.store(valid_at + pair * K + slot, valid, mask=slot < K)
    tl.store(cost_at + pair, best)
    tl.store(count_at + pair, count)


@triton.jit
@no_type_check
def _steps(
    inputs, state, best, count,
    WIDTH: tl.constexpr, K: tl.constexpr, SMALLEST: tl.constexpr,
    WIDE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Merge down to half as many centroids as there are slots; store the best step so far."""
    points, factors, best_at, largest = inputs
    centroids, cx, cy, importance = state
    FIRST: tl.constexpr = min(K, WIDTH)
    LAST: tl.constexpr = max(WIDTH // 2 + 1 if WIDTH > 8 else 2, SMALLEST)
    slot = tl.arange(0, WIDTH)
    alive = tl.full((), (1 << FIRST) - 1, tl.int64)
    for k in range(FIRST, LAST - 1, -1):
        living = ((alive >> slot) & 1) != 0
        powers = tl.where(living, tl.exp2(importance * LOG2_E), 0.0)
        columns = powers / tl.sum(powers, axis=0)
        cost = _cost(points, centroids, cx, cy, factors, EXACT)
        kernel, u, v, g = _transport(cost, points[5], columns, factors, WIDE)
        total = tl.sum(tl.sum(kernel * cost * u[:, None], axis=0) * v, axis=0)
        if (k <= largest) & (total < best):
            best, count = total, k
            _remember(best_at, centroids, cx, cy, g + _log2(v), living, K)
        if k > SMALLEST:
            centroids, cx, cy = _update(points, kernel, u, v * _inverse(columns), EXACT)
            i, j = _closest_pair(centroids, living, WIDTH)
            pair = tl.where((slot == i) | (slot == j), 0.5, 0.0)
            mean = tl.sum(centroids * pair, axis=1)[:, None]
            centroids = tl.where(slot == i, mean, centroids)
            cx = tl.where(slot == i, tl.sum(cx * pair, axis=0), cx)
            cy = tl.where(slot == i, tl.sum(cy * pair, axis=0), cy)
            importance = tl.where(slot == i, tl.sum(importance * pair, axis=0), importance)
            alive = alive & ~(tl.full((), 1, tl.int64) << j)
    if WIDTH > 8:  # close up
        living = ((alive >> slot) & 1) != 0
        pick = (_places(living)[:, None] == tl.arange(0, WIDTH // 2)) & living[:, None]
        pick = tl.where(pick, 1.0, 0.0)
        centroids = tl.dot(centroids, pick, input_precision="ieee")
        cx = tl.sum(cx[:, None] * pick, axis=0)
        cy = tl.sum(cy[:, None] * pick, axis=0)
        importance = tl.sum(importance[:, None] * pick, axis=0)
    return (centroids, cx, cy, importance), best, count


@triton.jit
@no_type_check
def _transport(cost, rows, columns, factors, WIDE: tl.constexpr):
    """Sinkhorn's kernel, u and v: the plan is u · kernel · v; and g, the kernel's own column
    factors as logarithms.

    The kernel is exp(−λ cost) times a constant. If that would leave the range of float32 (WIDE), it
    is the plan after a first pass on logarithms, in which no row and no column underflows.
    """
    kernel = _logits(cost, factors)
    g = tl.zeros_like(columns)
    u = rows
    v = tl.where(columns > 0, GAUGE, 0.0)
    iterations = factors[3]
    if WIDE:
        kernel = tl.where(columns > 0, kernel, NOTHING)
        kernel += (_log2(rows) - _log_sum(kernel, 1))[:, None]
        g = _log2(columns) - _log_sum(kernel, 0)
        kernel += g
        u = tl.where(rows > 0, 1.0, 0.0)
        v = tl.where(columns > 0, 1.0, 0.0)
        iterations -= 1
    kernel = tl.exp2(kernel)
    for _ in range(iterations):
        u = rows * _inverse(tl.sum(kernel * v, axis=1))
        v = columns * _inverse(tl.sum(kernel * u[:, None], axis=0))
    return kernel, u, v, g


@triton.jit
@no_type_check
def _cost(points, centroids, cx, cy, factors, EXACT: tl.constexpr):
    high, low, inverse_length, x, y, _rows = points
    dx, dy = x[:, None] - cx, y[:, None] - cy
    dots = _dot(high, low, _unit(centroids), EXACT)
    return dots * (factors[0] * inverse_length)[:, None] + tl.sqrt(dx * dx + dy * dy)


@triton.jit
@no_type_check
def _logits(cost, factors):
    """−λ cost to base 2, relative to the middle of the cost's range."""
    return (factors[1] - cost) * factors[2]


@triton.jit
@no_type_check
def _log2(values):
    return tl.where(values > 0, tl.log2(tl.maximum(values, TINY)), NOTHING)


@triton.jit
@no_type_check
def _log_sum(logits, AXIS: tl.constexpr):
    top = tl.max(logits, axis=AXIS)
    return top + tl.log2(tl.sum(tl.exp2(logits - tl.expand_dims(top, AXIS)), axis=AXIS))


@triton.jit
@no_type_check
def _remember(best_at, centroids, cx, cy, g, living, K: tl.constexpr):
    """Store what the assignments can be recomputed from, compacted: it is much smaller."""
    D: tl.constexpr = centroids.shape[0]
    place = _places(living)
    at = best_at + (tl.arange(0, D) * K)[:, None] + place
    tl.store(at, centroids, mask=living)
    tl.store(best_at + D * K + place, cx, mask=living)
    tl.store(best_at + (D + 1) * K + place, cy, mask=living)
    tl.store(best_at + (D + 2) * K + place, g, mask=living)


@triton.jit
@no_type_check
def _recall(best_at, slot, there, K: tl.constexpr, D: tl.constexpr):
    centroids = tl.load(best_at + (tl.arange(0, D) * K)[:, None] + slot, mask=there, other=0.0)
    cx = tl.load(best_at + D * K + slot, mask=there, other=0.0)
    cy = tl.load(best_at + (D + 1) * K + slot, mask=there, other=0.0)
    return centroids, cx, cy, tl.load(best_at + (D + 2) * K + slot, mask=there, other=NOTHING)


@triton.jit
@no_type_check
def _update(points, kernel, u, v, EXACT: tl.constexpr):
    """Means of tokens and positions, weighted by the columns of the plan, which v normalizes."""
    high, low, inverse_length, x, y, _rows = points
    kernel *= u[:, None]  # first, because u alone may be close to float32's maximum
    centroids = _dot(high.T, low.T, kernel * inverse_length[:, None], EXACT) * v
    cx = tl.sum(kernel * x[:, None], axis=0) * v
    cy = tl.sum(kernel * y[:, None], axis=0) * v
    return centroids, cx, cy


@triton.jit
@no_type_check
def _closest_pair(centroids, living, WIDTH: tl.constexpr):
    """The pair i < j, the first among equals, chosen in float32.

    Not an argmax of all pairs in one row: Triton then reorders them, but not their indices.
    """
    slot = tl.arange(0, WIDTH)
    unit = _unit(centroids)
    similarity = tl.dot(unit.T, unit, input_precision="ieee")
    above = (slot[:, None] < slot) & living[:, None] & living
    similarity = tl.where(above, similarity, float("-inf"))
    best, partner = tl.max(similarity, axis=1, return_indices=True)
    i = tl.argmax(best, axis=0)
    return i, tl.sum(tl.where(slot == i, partner, 0), axis=0)


@triton.jit
@no_type_check
def _places(living):
    """How many living slots come before each."""
    ones = living.to(tl.int32)
    return tl.cumsum(ones, axis=0) - ones


@triton.jit
@no_type_check
def _unit(columns):
    """Columns to unit length."""
    return columns * tl.rsqrt(tl.maximum(tl.sum(columns * columns, axis=0), 1e-24))


@triton.jit
@no_type_check
def _inverse(values):
    """1 / values, in a third of the instructions of a division."""
    root = tl.rsqrt(tl.maximum(values, TINY))
    return root * root


@triton.jit
@no_type_check
def _parts(values):
    """Two bfloat16 whose sum has 16 of float32's 24 bits."""
    high = values.to(tl.bfloat16)
    return high, (values.to(tl.float32) - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
@no_type_check
def _dot(high, low, b, EXACT: tl.constexpr):
    """(high + low) · b on tensor cores; where `high` is EXACT, low is 0."""
    b_high, b_low = _parts(b)
    product = tl.dot(high, b_low)
    product = tl.dot(high, b_high, product)
    if not EXACT:
        product = tl.dot(low, b_high, product)
    return product
