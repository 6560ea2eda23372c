"""Self-distillation on a GPU: from the outputs of teacher and student to the losses in one pass.

Equivalent to losses.py, for two views. A program computes one image or cluster, in both views and
both networks, with a running maximum; probabilities are never stored. The gradient takes one more
pass. Items that are not valid (padding and pruned clusters) are not read.
"""

import math
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

VIEWS = 2
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))
# Less than all outputs, but finite, so that 0 times it is 0.
LOWEST = tl.constexpr(-1e30)
FORWARD = {"BLOCK": 4096, "num_warps": 8}
BACKWARD = {"BLOCK": 4096, "num_warps": 8}
SUMMING = {"CHUNK": 256, "ROWS": 16, "COLUMNS": 256, "num_warps": 4}


def fits(teacher: Tensor, student: Tensor) -> bool:
    """Whether the kernels support these outputs; if not, the PyTorch reference is used."""
    kinds = {teacher.dtype, student.dtype}
    return len(teacher) == VIEWS and kinds <= {torch.bfloat16, torch.float16, torch.float32}


def launch_forward(
    teacher, center, temperature, student, student_temp, valid, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    teacher, student, valid = teacher.contiguous(), student.contiguous(), valid.contiguous()
    inputs = teacher, center, temperature, student, 1 / student_temp, valid
    result = _empty(teacher, center, temperature, student, student_temp, valid)
    rows = valid.numel()
    with torch.cuda.device_of(student):
        programs: Any = _forward[(rows,)]
        programs(*inputs, *result, rows, student.shape[-1], **(FORWARD | options))
    return result


def launch_backward(
    teacher, center, temperature, student, student_temp, normalizers, grad, **options: Any
) -> Tensor:
    """Where `grad` is 0, nothing is computed or read."""
    teacher, student, grad = teacher.contiguous(), student.contiguous(), grad.contiguous()
    inputs = teacher, center, temperature, student, 1 / student_temp, normalizers, grad
    result = torch.empty_like(student)
    with torch.cuda.device_of(student):
        programs: Any = _backward[(grad.numel(),)]
        programs(*inputs, result, grad.numel(), student.shape[-1], **(BACKWARD | options))
    return result


def launch_total(outputs, weights, **changes: Any) -> Tensor:
    options = SUMMING | changes
    outputs, weights = outputs.contiguous(), weights.contiguous()
    rows, width = weights.numel(), outputs.shape[-1]
    chunks = triton.cdiv(rows, options["CHUNK"])
    sums = outputs.new_empty(chunks, width, dtype=torch.float32)
    with torch.cuda.device_of(outputs):
        programs: Any = _total[(triton.cdiv(width, options["COLUMNS"]), chunks)]
        programs(outputs, weights, sums, rows, width, **options)
    return sums.sum(dim=0)


def _empty(teacher, center, temperature, student, student_temp, valid):
    """Losses, entropies, and the log normalizers of teacher and student, uninitialized."""
    rows = valid.numel()
    losses, entropies = (valid.new_empty(valid.shape, dtype=torch.float32) for _ in range(2))
    return losses, entropies, valid.new_empty(2 * VIEWS, rows, dtype=torch.float32)


distill_loss = torch.library.custom_op(
    "croc::distill_loss",
    launch_forward,
    mutates_args=(),
    schema="(Tensor teacher, Tensor center, Tensor temperature, Tensor student, "
    "float student_temp, Tensor valid) -> (Tensor, Tensor, Tensor)",
)
distill_loss.register_fake(_empty)
_distill_backward = torch.library.custom_op(
    "croc::distill_backward",
    launch_backward,
    mutates_args=(),
    schema="(Tensor teacher, Tensor center, Tensor temperature, Tensor student, "
    "float student_temp, Tensor normalizers, Tensor grad) -> Tensor",
)
_distill_backward.register_fake(lambda teacher, center, t, student, *_: torch.empty_like(student))
weighted_total = torch.library.custom_op(
    "croc::weighted_total",
    launch_total,
    mutates_args=(),
    schema="(Tensor outputs, Tensor weights) -> Tensor",
)
weighted_total.register_fake(
    lambda outputs, weights: outputs.new_empty(outputs.shape[-1], dtype=torch.float32)
)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.student_temp, valid = inputs
    ctx.save_for_backward(*tensors, output[2], valid)


def _differentiate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, normalizers, valid = ctx.saved_tensors
    grad = torch.where(valid, grad, 0.0)
    result = _distill_backward(*tensors, ctx.student_temp, normalizers, grad)
    return None, None, None, result, None, None


distill_loss.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
@no_type_check
def _forward(
    teacher_at, center_at, temperature_at, student_at, sharpness, counted_at,
    losses_at, entropies_at, normalizers_at, rows, width, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    loss, entropy = 0.0, 0.0
    if tl.load(counted_at + row):
        scales = LOG2_E / tl.load(temperature_at), sharpness * LOG2_E
        most_a = tl.full((), LOWEST, tl.float32)
        most_b, most_c, most_d = most_a, most_a, most_a
        sum_a, sum_b, sum_c, sum_d = 0.0, 0.0, 0.0, 0.0
        own_a, own_b, cross_a, cross_b = 0.0, 0.0, 0.0, 0.0
        for first in range(0, width, BLOCK):
            places = row, rows, width, first + tl.arange(0, BLOCK)
            a, b, c, d = _outputs(teacher_at, center_at, student_at, scales, places)
            # a and b are the teacher's views, c and d the student's; a is the target of d, b of c.
            most_a, sum_a, own_a, kept, power = _grow(most_a, sum_a, own_a, a)
            cross_a = cross_a * kept + tl.sum(power * d, axis=0)
            most_b, sum_b, own_b, kept, power = _grow(most_b, sum_b, own_b, b)
            cross_b = cross_b * kept + tl.sum(power * c, axis=0)
            most_c, sum_c, _own, kept, power = _grow(most_c, sum_c, 0.0, c)
            most_d, sum_d, _own, kept, power = _grow(most_d, sum_d, 0.0, d)
        log_a, log_b = tl.log2(sum_a), tl.log2(sum_b)
        log_c, log_d = most_c + tl.log2(sum_c), most_d + tl.log2(sum_d)
        loss = (log_c + log_d - cross_a / sum_a - cross_b / sum_b) * (0.5 * LN_2)
        entropy = (log_a + log_b - own_a / sum_a - own_b / sum_b) * (0.5 * LN_2)
        tl.store(normalizers_at + row, most_a + log_a)
        tl.store(normalizers_at + rows + row, most_b + log_b)
        tl.store(normalizers_at + 2 * rows + row, log_c)
        tl.store(normalizers_at + 3 * rows + row, log_d)
    tl.store(losses_at + row, loss)
    tl.store(entropies_at + row, entropy)


@triton.jit
@no_type_check
def _backward(
    teacher_at, center_at, temperature_at, student_at, sharpness, normalizers_at, grad_at,
    result_at, rows, width, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    grad = tl.load(grad_at + row) * 0.5 * sharpness
    place = tl.arange(0, BLOCK)
    if grad != 0:
        scales = LOG2_E / tl.load(temperature_at), sharpness * LOG2_E
        log_a, log_b = tl.load(normalizers_at + row), tl.load(normalizers_at + rows + row)
        log_c = tl.load(normalizers_at + 2 * rows + row)
        log_d = tl.load(normalizers_at + 3 * rows + row)
        for first in range(0, width, BLOCK):
            places = row, rows, width, first + place
            a, b, c, d = _outputs(teacher_at, center_at, student_at, scales, places)
            to_c = (tl.exp2(c - log_c) - tl.exp2(b - log_b)) * grad
            to_d = (tl.exp2(d - log_d) - tl.exp2(a - log_a)) * grad
            _store(result_at, places, to_c, to_d)
    else:
        nothing = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, width, BLOCK):
            _store(result_at, (row, rows, width, first + place), nothing, nothing)


@triton.jit
@no_type_check
def _outputs(teacher_at, center_at, student_at, scales, places):
    """The outputs for both views, as base-2 logits; the teacher's are centered."""
    row, rows, width, place = places
    real = place < width
    here, there = row * width + place, (rows + row) * width + place
    center = tl.load(center_at + place, mask=real, other=0.0)
    a = (tl.load(teacher_at + here, mask=real, other=0.0).to(tl.float32) - center) * scales[0]
    b = (tl.load(teacher_at + there, mask=real, other=0.0).to(tl.float32) - center) * scales[0]
    c = tl.load(student_at + here, mask=real, other=0.0).to(tl.float32) * scales[1]
    d = tl.load(student_at + there, mask=real, other=0.0).to(tl.float32) * scales[1]
    a, b = tl.where(real, a, LOWEST), tl.where(real, b, LOWEST)
    return a, b, tl.where(real, c, LOWEST), tl.where(real, d, LOWEST)


@triton.jit
@no_type_check
def _grow(most, total, own, values):
    """Add values to running sums: returns the maximum, the sum of powers relative to it, the sum of
    powers times logarithms, the factor for other sums, and the powers of the values."""
    larger = tl.maximum(most, tl.max(values, axis=0))
    kept, power = tl.exp2(most - larger), tl.exp2(values - larger)
    own = kept * (own + total * (most - larger)) + tl.sum(power * (values - larger), axis=0)
    return larger, total * kept + tl.sum(power, axis=0), own, kept, power


@triton.jit
@no_type_check
def _store(result_at, places, one, two):
    row, rows, width, place = places
    tl.store(result_at + row * width + place, one, mask=place < width)
    tl.store(result_at + (rows + row) * width + place, two, mask=place < width)


@triton.jit
@no_type_check
def _total(
    outputs_at, weights_at, sums_at, rows, width,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    chunk = tl.program_id(1)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, CHUNK, ROWS):
        row = chunk.to(tl.int64) * CHUNK + first + tl.arange(0, ROWS)
        weight = tl.load(weights_at + row, mask=row < rows, other=0.0)
        real = (weight != 0)[:, None] & (column < width)
        output = tl.load(outputs_at + row[:, None] * width + column, mask=real, other=0.0)
        sums += output.to(tl.float32) * weight[:, None]
    tl.store(sums_at + chunk * width + column, tl.sum(sums, axis=0), mask=column < width)
