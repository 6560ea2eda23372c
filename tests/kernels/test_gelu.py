"""The GELU kernels against float64: in Triton's interpreter, and in the layer on a GPU."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from croc import kernels
from croc.kernels import layers
from croc.kernels.layers import LinearGelu, convert
from tests.kernels.interpreter import bfloat16_in_interpreter, check_operator, interpreted

gelu = pytest.importorskip("croc.kernels.gelu", reason="needs Triton")


def exact(hidden: Tensor) -> tuple[Tensor, Tensor]:
    """GELU and its derivative in float64, without cancellation in 1 + erf."""
    x = hidden.double()
    below = torch.erfc(-x / math.sqrt(2)) / 2
    return x * below, below + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def assert_exact(device: str) -> None:
    """In float32; rounding to bfloat16 adds a relative error of 4e-3."""
    x = torch.linspace(-30, 30, 3 * 2**14, device=device).view(-1, 128)
    value, derivative = exact(x)
    result = gelu.launch_forward(x)
    gradient, _ = gelu.launch_backward(x, torch.ones_like(x))
    error = ((result - value).abs() / x.abs()).max()
    bound = 5e-7 if x.is_cuda else 3e-7  # rsqrt is less accurate on GPUs
    assert error < bound
    assert (gradient - derivative).abs().max() < bound
    for tail, numbers, references in ((x < -1, result, value), (x < -2, gradient, derivative)):
        tail = tail & (x > -12)
        torch.testing.assert_close(numbers[tail].double(), references[tail], rtol=3e-4, atol=0)


def assert_bounded(device: str) -> None:
    largest = torch.finfo(torch.float32).max
    ends = [0.0, -0.0, 30.0, -30.0, 1e19, -1e19, largest, -largest]
    x = torch.tensor([ends], device=device)
    assert torch.equal(gelu.launch_forward(x), x.relu())
    gradient, sums = gelu.launch_backward(x, torch.ones_like(x))
    expected = torch.tensor([[0.5, 0.5] + [1.0, 0.0] * 3], device=device)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(sums, gradient)


@interpreted
def test_values_and_derivatives() -> None:
    assert_exact("cpu")
    with np.errstate(over="ignore"):
        assert_bounded("cpu")


@interpreted
@pytest.mark.parametrize("shape", [(5, 27, 48), (130, 17)])
def test_sums_over_blocks_of_rows(shape: tuple[int, ...]) -> None:
    """With incomplete blocks of rows and columns, and non-contiguous tensors."""
    hidden, grad = (torch.randn(*shape[:-1], shape[-1] * 2)[..., ::2] for _ in range(2))
    value, derivative = exact(hidden)
    expected = grad * derivative
    gradient, sums = gelu.launch_backward(hidden, grad, ROWS=32, STEP=8, COLUMNS=64)
    rows = gradient.flatten(0, -2)
    assert sums.shape == (-(-len(rows) // 32), shape[-1])
    result = gelu.launch_forward(hidden, BLOCK=256)
    torch.testing.assert_close(result.double(), value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)
    for block, total in zip(rows.split(32), sums):
        torch.testing.assert_close(total, block.sum(dim=0), rtol=1e-5, atol=1e-5)


@interpreted
def test_bfloat16_is_rounded_once() -> None:
    hidden, grad = torch.randn(2, 96, 32).bfloat16()
    value, derivative = exact(hidden)
    expected = grad * derivative
    with bfloat16_in_interpreter():
        activations = gelu.launch_forward(hidden)
        gradient, sums = gelu.launch_backward(hidden, grad)
    for result, reference in ((activations, value), (gradient, expected)):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.double(), reference, rtol=1.01 * 2**-8, atol=0)
        assert (result == reference.bfloat16()).float().mean() > 0.995
    total = sums.sum(dim=0).double()
    torch.testing.assert_close(total, expected.sum(dim=0), rtol=1e-5, atol=1e-5)


def make_pair(
    *sizes: int, bias: bool = True, device: str = "cpu"
) -> tuple[nn.Sequential, nn.Linear]:
    """nn.Linear and nn.GELU, and a copy of them as one layer."""
    torch.manual_seed(0)
    linear, fused = (nn.Linear(*sizes, bias=bias).to(device) for _ in range(2))
    fused.load_state_dict(linear.state_dict())
    convert(fused, LinearGelu)
    return nn.Sequential(linear, nn.GELU()), fused


def gradients(layer: nn.Module, x: Tensor, grad: Tensor, autocast: bool = False) -> list[Tensor]:
    """Activations, and the gradients of x, weight and bias."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        activations = layer(x)
    grads = torch.autograd.grad(activations, [x, *layer.parameters()], grad.to(activations.dtype))
    return [activations.detach(), *grads]


@interpreted
@pytest.mark.parametrize("compiled", [False, True])
def test_layer_with_kernels_equals_linear_and_gelu(monkeypatch, compiled: bool) -> None:
    monkeypatch.setattr(kernels, "can_run", lambda x: True)
    monkeypatch.setattr(layers, "autocast_dtype", lambda *_: torch.bfloat16)
    pair, fused = make_pair(8, 24)
    if compiled:
        fused.compile(backend="aot_eager", fullgraph=True)
    x, grad = torch.randn(3, 5, 8), torch.randn(3, 5, 24)
    for one, two in zip(gradients(fused, x, grad), gradients(pair, x, grad)):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(fused(x[0, 0]), pair(x[0, 0]))


@interpreted
def test_operators_pass_opcheck() -> None:
    hidden, bias = torch.randn(3, 70, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    check_operator(torch.ops.croc.gelu.default, hidden, bias)
    check_operator(torch.ops.croc.gelu_backward.default, hidden.detach(), torch.randn(3, 70, 8))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_without_kernels_equals_linear_and_gelu(bias: bool) -> None:
    pair, fused = make_pair(6, 16, bias=bias)
    x, grad = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 4, 16)
    for one, two in zip(gradients(fused, x, grad), gradients(pair, x, grad)):
        assert torch.equal(one, two)


# --- on a GPU -------------------------------------------------------------------------------


@pytest.mark.cuda
def test_values_and_derivatives_on_gpu() -> None:
    assert_exact("cuda")
    assert_bounded("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_use_linear_and_gelu(dtype: torch.dtype) -> None:
    pair, fused = (layer.to(dtype) for layer in make_pair(32, 64, device="cuda"))
    x, grad = (torch.randn(40, width, device="cuda", dtype=dtype) for width in (32, 64))
    for one, two in zip(gradients(fused, x, grad), gradients(pair, x, grad)):
        assert torch.equal(one, two)


@pytest.mark.cuda
@pytest.mark.compiled
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_as_accurate_as_linear_and_gelu(autocast: bool, compiled: bool) -> None:
    pair, fused = make_pair(384, 1536, device="cuda")
    x, grad = (torch.randn(16, 197, width, device="cuda").bfloat16() for width in (384, 1536))
    if not autocast:
        pair, fused = pair.bfloat16(), fused.bfloat16()
    expected = gradients(copy.deepcopy(pair).double(), x.double(), grad.double())
    if compiled:
        pair.compile(fullgraph=True)
        fused.compile(fullgraph=True)
    results, of_pair = (gradients(layer, x, grad, autocast) for layer in (fused, pair))
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast), torch.no_grad():
        torch.testing.assert_close(fused(x), results[0])
    for name, one, two, reference in zip(
        ("activations", "x", "weight", "bias"), results, of_pair, expected
    ):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        error, usual_error = ((y - reference).norm() / reference.norm() for y in (one, two))
        assert error < 1.05 * usual_error + 1e-6, name
