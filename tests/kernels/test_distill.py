"""The losses' kernels against the reference: small in Triton's interpreter, full size on a GPU."""

import pytest
import torch
from torch import Tensor

from croc.method import losses
from tests.kernels.interpreter import check_operator, interpreted

kernel = pytest.importorskip("croc.kernels.distill", reason="needs Triton")


def make(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, spread: float = 1.0):
    """Outputs of both networks, a center, a temperature, and a mask without the first item."""
    torch.manual_seed(0)
    teacher, student = (spread * torch.randn(2, *shape, device=device) for _ in range(2))
    counted = torch.rand(shape[:-1], device=device) < 0.6
    counted.view(-1)[:2] = torch.tensor([False, True])
    center = torch.randn(shape[-1], device=device)
    temperature = torch.full((), 0.07, device=device)
    return teacher.to(dtype), center, temperature, student.to(dtype), 0.1, counted


def reference(teacher, center, temperature, student, student_temp, counted):
    """Losses and entropies in float64, and the gradient of a weighted sum of losses."""
    student = student.detach().double().requires_grad_()
    probabilities = ((teacher.double() - center) / temperature.double()).softmax(dim=-1)
    log_student = (student / student_temp).log_softmax(dim=-1)
    loss = -(probabilities * log_student.flip(0)).sum(dim=-1).mean(dim=0) * counted
    own = losses.entropy(probabilities).mean(dim=0) * counted
    (loss * weights_of(loss)).sum().backward()
    return loss.detach(), own, student.grad


def weights_of(loss: Tensor) -> Tensor:
    return torch.linspace(0.5, 2, loss.numel(), device=loss.device).view(loss.shape)


def by_kernel(*inputs):
    teacher, center, temperature, student, *rest = inputs
    student = student.detach().requires_grad_()
    loss, entropy, *_ = kernel.distill_loss(teacher, center, temperature, student, *rest)
    (loss * weights_of(loss)).sum().backward()
    return loss.detach(), entropy, student.grad


def assert_agree(inputs, rtol: float, atol: float) -> None:
    result, expected = by_kernel(*inputs), reference(*inputs)
    for one, two in zip(result, expected):
        torch.testing.assert_close(one.double(), two, rtol=rtol, atol=atol)
    masked = ~inputs[-1].expand(2, *inputs[-1].shape)
    assert (result[0][~inputs[-1]] == 0).all()
    assert (result[2][masked] == 0).all()


@interpreted
@pytest.mark.parametrize("shape", [(3, 2, 4, 130), (2, 4097)])
@pytest.mark.parametrize(("spread", "tolerance"), [(0.1, 2e-5), (30.0, 2e-4)])
def test_losses_entropies_and_gradients(shape: tuple[int, ...], spread: float, tolerance: float):
    """With a large spread the teacher chooses one prototype; logarithms are then in the thousands,
    with rounding errors of about 1e-4 in float32."""
    assert_agree(make(*shape, spread=spread), rtol=tolerance, atol=tolerance)


@interpreted
def test_operators_pass_opcheck() -> None:
    inputs = make(4, 9)
    inputs[3].requires_grad_()
    check_operator(kernel.distill_loss, *inputs)
    check_operator(kernel.weighted_total, inputs[0], inputs[-1].float().expand(2, 4))


@interpreted
@pytest.mark.parametrize("shape", [(2, 9, 2, 300), (700, 4)])
def test_weighted_total(shape: tuple[int, ...]) -> None:
    outputs, weights = torch.randn(*shape), torch.rand(shape[:-1]).round()
    outputs[weights == 0] = torch.nan  # must not be read
    expected = torch.einsum("rp,r->p", outputs.nan_to_num().flatten(0, -2), weights.flatten())
    torch.testing.assert_close(kernel.weighted_total(outputs, weights), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 65_536), (32, 6, 12, 8192), (8, 1000)])
def test_at_full_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Against float64; the gradient is rounded to its dtype."""
    inputs = make(*shape, device="cuda", dtype=dtype)
    tolerance = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (1e-2, 1e-4)}[dtype]
    assert_agree(inputs, *tolerance)
    loss, own, _ = by_kernel(*inputs)
    expected = reference(*inputs)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own.double(), expected[1], rtol=1e-5, atol=1e-5)
    total = losses.weighted_total(inputs[0], inputs[-1].float().expand(2, *inputs[-1].shape))
    exact = (inputs[0].double() * inputs[-1][..., None]).flatten(0, -2).sum(dim=0)
    torch.testing.assert_close(total.double(), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_equals_eager() -> None:
    inputs = make(16, 6, 12, 512, device="cuda", dtype=torch.bfloat16)
    expected = losses.distill_loss(*inputs)
    for one, two in zip(torch.compile(losses.distill_loss, fullgraph=True)(*inputs), expected):
        torch.testing.assert_close(one, two)
