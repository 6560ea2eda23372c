"""The losses' kernels against their definition: small in Triton's interpreter, real on a GPU."""

import pytest
import torch
from torch import Tensor

from croc.method import losses
from tests.kernels.interpreter import interpreted

kernel = pytest.importorskip("croc.kernels.distill", reason="Triton is not everywhere")


def make(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, spread: float = 1.0):
    """Outputs of both networks, a center, a temperature, and what counts: not the first item."""
    torch.manual_seed(0)
    teacher, student = (spread * torch.randn(2, *shape, device=device) for _ in range(2))
    counted = torch.rand(shape[:-1], device=device) < 0.6
    counted.view(-1)[:2] = torch.tensor([False, True])
    center = torch.randn(shape[-1], device=device)
    temperature = torch.full((), 0.07, device=device)
    return teacher.to(dtype), center, temperature, student.to(dtype), 0.1, counted


def defined(teacher, center, temperature, student, student_temp, counted):
    """In float64, with the gradient of a weighted sum."""
    student = student.detach().double().requires_grad_()
    probabilities = ((teacher.double() - center) / temperature.double()).softmax(dim=-1)
    log_student = (student / student_temp).log_softmax(dim=-1)
    loss = -(probabilities * log_student.flip(0)).sum(dim=-1).mean(dim=0) * counted
    own = losses.entropy(probabilities).mean(dim=0) * counted
    (loss * weights_of(loss)).sum().backward()
    return loss.detach(), own, student.grad


def weights_of(loss: Tensor) -> Tensor:
    return torch.linspace(0.5, 2, loss.numel(), device=loss.device).view(loss.shape)


def by_kernel(*given):
    teacher, center, temperature, student, student_temp, counted = given
    student = student.detach().requires_grad_()
    found = kernel.distill_loss(teacher, center, temperature, student, student_temp, counted)
    (found[0] * weights_of(found[0])).sum().backward()
    return found[0].detach(), found[1], student.grad


def assert_agree(given, rtol: float, atol: float) -> None:
    result, expected = by_kernel(*given), defined(*given)
    for one, two in zip(result, expected):
        torch.testing.assert_close(one.double(), two, rtol=rtol, atol=atol)
    nothing = ~given[-1].expand(2, *given[-1].shape)
    assert (result[0][~given[-1]] == 0).all()
    assert (result[2][nothing] == 0).all()


@interpreted
@pytest.mark.parametrize("shape", [(3, 2, 4, 130), (2, 4097)])
@pytest.mark.parametrize(("spread", "tolerance"), [(0.1, 2e-5), (30.0, 2e-4)])
def test_losses_entropies_and_gradients(shape: tuple[int, ...], spread: float, tolerance: float):
    """Spread outputs put all of the teacher's weight on one prototype; in float32 the logarithms
    are then thousands, and rounded by some 1e-4."""
    assert_agree(make(*shape, spread=spread), rtol=tolerance, atol=tolerance)


@interpreted
def test_operators_keep_their_word() -> None:
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    given = make(4, 9)
    given[3].requires_grad_()
    torch.library.opcheck(kernel.distill_loss, given, test_utils=checks)
    given = given[0], given[-1].float().expand(2, 4)
    torch.library.opcheck(kernel.weighted_total, given, test_utils=checks)


@interpreted
@pytest.mark.parametrize("shape", [(2, 9, 2, 300), (700, 4)])
def test_weighted_total(shape: tuple[int, ...]) -> None:
    outputs, weights = torch.randn(*shape), torch.rand(shape[:-1]).round()
    outputs[weights == 0] = torch.nan  # is not read
    expected = torch.einsum("rp,r->p", outputs.nan_to_num().flatten(0, -2), weights.flatten())
    torch.testing.assert_close(kernel.weighted_total(outputs, weights), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 65_536), (32, 6, 12, 8192), (8, 1000)])
def test_at_full_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Against float64 of the same outputs; the gradient then has the rounding of its own type."""
    given = make(*shape, device="cuda", dtype=dtype)
    tolerance = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (1e-2, 1e-4)}[dtype]
    assert_agree(given, *tolerance)
    loss, own, _ = by_kernel(*given)
    expected = defined(*given)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own.double(), expected[1], rtol=1e-5, atol=1e-5)
    total = losses.weighted_total(given[0], given[-1].float().expand(2, *given[-1].shape))
    reference = (given[0].double() * given[-1][..., None]).flatten(0, -2).sum(dim=0)
    torch.testing.assert_close(total.double(), reference, rtol=1e-4, atol=1e-3)


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_as_the_training_calls_it() -> None:
    given = make(16, 6, 12, 512, device="cuda", dtype=torch.bfloat16)
    expected = losses.distill_loss(*given)
    for one, two in zip(torch.compile(losses.distill_loss, fullgraph=True)(*given), expected):
        torch.testing.assert_close(one, two)
