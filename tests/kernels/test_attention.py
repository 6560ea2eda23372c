"""The attention kernels against float64: small in Triton's interpreter, full size on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.interpreter import bfloat16_in_interpreter, check_operator, interpreted


def draw(images: int, tokens: int, heads: int, d: int, dtype: torch.dtype, device: str):
    """Packed queries, keys and values of unit variance, and a gradient of the output."""
    generator = torch.Generator(device).manual_seed(tokens * d + heads)
    options = {"generator": generator, "device": device}
    qkv = torch.randn(images, tokens, 3 * heads * d, **options).to(dtype)
    return qkv, torch.randn(images, tokens, heads * d, **options).to(dtype)


def unpack(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    return qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def by_hand(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = unpack(qkv, heads)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def by_torch(qkv: Tensor, heads: int) -> Tensor:
    return F.scaled_dot_product_attention(*unpack(qkv, heads)).transpose(1, 2).flatten(2)


def values_and_gradient(attend, qkv: Tensor, grad: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    qkv = qkv.detach().requires_grad_()
    out = attend(qkv, heads)
    out.backward(grad)
    return out.detach(), qkv.grad


def errors(result: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor], heads: int) -> list[float]:
    """Relative errors of the output and of the gradients of queries, keys and values."""
    pairs = [(result[0], exact[0])]
    pairs += zip(unpack(result[1], heads), unpack(exact[1], heads), strict=True)
    assert all(torch.isfinite(one).all() for one, _ in pairs)
    return [float((one.double() - two).norm() / (two.norm() + 1e-12)) for one, two in pairs]


@pytest.fixture(scope="module")
def attention():
    """The kernel's module."""
    from croc.kernels import attention

    with bfloat16_in_interpreter():
        yield attention


SMALL = [  # tokens, heads, d, dtype
    (5, 1, 32, torch.bfloat16),
    (37, 3, 32, torch.float16),
    (69, 2, 16, torch.bfloat16),
    (197, 1, 64, torch.float16),
]


@interpreted
@pytest.mark.parametrize(("tokens", "heads", "d", "dtype"), SMALL)
def test_agrees_with_float64(attention, tokens: int, heads: int, d: int, dtype) -> None:
    qkv, grad = draw(2, tokens, heads, d, dtype, "cpu")
    exact = values_and_gradient(by_hand, qkv.double(), grad.double(), heads)
    result = values_and_gradient(attention.packed_attention, qkv, grad, heads)
    assert result[0].dtype == result[1].dtype == dtype
    assert max(errors(result, exact, heads)) < torch.finfo(dtype).eps


@interpreted
def test_one_token_attends_to_itself(attention) -> None:
    qkv, grad = draw(2, 1, 2, 16, torch.float16, "cpu")
    out, gradient = values_and_gradient(attention.packed_attention, qkv, grad, 2)
    assert torch.equal(out, qkv[..., 64:])
    assert torch.equal(gradient[..., 64:], grad)
    assert gradient[..., :64].abs().max() < 1e-3


@interpreted
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("offset", [-80.0, 80.0])
def test_large_scores_stay_finite(attention, offset: float) -> None:
    """Scores far below or above those of padding, which are 0."""
    qkv, grad = draw(1, 21, 1, 16, torch.float16, "cpu")
    qkv[..., 0], qkv[..., 16] = 80.0, offset
    exact = values_and_gradient(by_hand, qkv.double(), grad.double(), 1)
    result = values_and_gradient(attention.packed_attention, qkv, grad, 1)
    assert max(errors(result, exact, 1)) < 0.01


@interpreted
def test_accepts_any_strides(attention) -> None:
    qkv, grad = draw(2, 20, 2, 16, torch.float16, "cpu")
    plain = values_and_gradient(attention.packed_attention, qkv, grad, 2)
    strided = torch.empty(20, 2, 96, dtype=qkv.dtype).transpose(0, 1).copy_(qkv)
    far = torch.empty(2, 20, 64, dtype=qkv.dtype)[..., ::2].copy_(grad[..., :32])
    other = values_and_gradient(
        attention.packed_attention, strided, torch.cat([far, grad[..., 32:]], dim=-1), 2
    )
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


@interpreted
def test_operator_passes_opcheck(attention) -> None:
    qkv, _ = draw(1, 5, 2, 16, torch.float16, "cpu")
    check_operator(torch.ops.croc.attention.default, qkv.requires_grad_(), 2)


# --- on a GPU -------------------------------------------------------------------------------

FULL = [  # images, tokens, heads, dtype
    (64, 197, 6, torch.bfloat16),
    (64, 197, 6, torch.float16),
    (8, 257, 12, torch.bfloat16),
    (64, 50, 3, torch.bfloat16),
    (64, 37, 6, torch.bfloat16),
    (64, 16, 6, torch.bfloat16),
    (64, 5, 6, torch.float16),
]


@pytest.mark.cuda
@pytest.mark.parametrize(("images", "tokens", "heads", "dtype"), FULL)
def test_as_accurate_as_torch(images: int, tokens: int, heads: int, dtype: torch.dtype) -> None:
    from croc.kernels.attention import fits, packed_attention

    qkv, grad = draw(images, tokens, heads, 64, dtype, "cuda")
    assert fits(tokens, 64, dtype, qkv.device)
    exact = values_and_gradient(by_hand, qkv.double(), grad.double(), heads)
    torchs = values_and_gradient(by_torch, qkv, grad, heads)
    result = values_and_gradient(packed_attention, qkv, grad, heads)
    pairs = zip(errors(result, exact, heads), errors(torchs, exact, heads), strict=True)
    assert all(error < 1.15 * torchs_error for error, torchs_error in pairs)


@pytest.mark.cuda
def test_deterministic_and_one_token_on_gpu() -> None:
    """No sum depends on the order of programs."""
    from croc.kernels.attention import packed_attention

    qkv, grad = draw(64, 197, 6, 64, torch.bfloat16, "cuda")
    one, two = (values_and_gradient(packed_attention, qkv, grad, 6) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    qkv, grad = draw(64, 1, 6, 64, torch.bfloat16, "cuda")
    out, gradient = values_and_gradient(packed_attention, qkv, grad, 6)
    assert torch.equal(out, qkv[..., 768:])
    assert torch.equal(gradient[..., 768:], grad)


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_is_one_graph() -> None:
    """Between the linear layers around it, under autocast."""
    from croc.kernels.attention import packed_attention

    torch.manual_seed(0)
    before, after = torch.nn.Linear(384, 1152).cuda(), torch.nn.Linear(384, 384).cuda()

    def block(x: Tensor) -> Tensor:
        return after(packed_attention(before(x), 6))

    x = torch.randn(16, 197, 384, device="cuda")
    results = []
    for run in (block, torch.compile(block, fullgraph=True)):
        with torch.autocast("cuda", torch.bfloat16):
            out = run(x)
        gradients = torch.autograd.grad(out.float().square().sum(), [*before.parameters()])
        results.append([out.detach(), *gradients])
    for one, two in zip(*results, strict=True):
        assert ((one - two).norm() / one.norm()) < 0.01
