"""Triton's interpreter, enabled by test_interpreted.py only, with correct bfloat16."""

import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in a separate process")


@contextmanager
def forbid_synchronization() -> Generator[None, None, None]:
    """Context in which synchronizing with the GPU is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def check_operator(operator: Any, *inputs: object) -> None:
    """PyTorch's checks of schema, autograd and fake tensors."""
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(operator, inputs, test_utils=checks)


@contextmanager
def bfloat16_in_interpreter() -> Generator[None, None, None]:
    """Without this, the interpreter truncates to bfloat16, and multiplies its bit patterns."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def widen(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def round_to_nearest(self, source: TensorHandle, target: tl.dtype) -> TensorHandle:
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return cast(self, source, target)
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return TensorHandle(rounded, target.scalar)

    def dot_of_widened(self, a: TensorHandle, b: TensorHandle, *more: object) -> TensorHandle:
        return dot(self, widen(a), widen(b), *more)

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", dot_of_widened)
        patch.setattr(InterpreterBuilder, "cast_impl", round_to_nearest)
        yield
