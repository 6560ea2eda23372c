"""Layers that take the place of timm's, with the same parameters under the same names."""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from timm.layers.attention import Attention
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.kernels import serve


class KeyedDropPath(nn.Module):
    """Stochastic depth whose draw is handed in, so that it follows the sample, not the process."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.scale: Tensor | None = None

    def forward(self, x: Float[Tensor, "b n D"]) -> Float[Tensor, "b n D"]:
        return x if self.scale is None else x * self.scale.to(x.dtype)[:, None, None]


class SeenLinear(nn.Linear):
    """A linear layer that shows its outputs to whoever hangs up a list for them."""

    seen: list[Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        if self.seen is not None:
            self.seen.append(output)
        return output


class LinearGelu(nn.Linear):
    """GELU(xWᵀ + b)."""

    def forward(self, input: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch D"]:
        dtype = autocast_dtype(input.device, input.dtype)
        if self.bias is None or not (serve(input) and dtype == torch.bfloat16):
            return F.gelu(F.linear(input, self.weight, self.bias))
        from croc.kernels.gelu import gelu

        # The bias is detached here since `gelu` is where it gets its gradient.
        return gelu(F.linear(input, self.weight, self.bias.detach()), self.bias)


class PackedAttention(Attention):
    """Attention of every token to every other, from the packed output of the qkv layer."""

    def forward(
        self, x: Float[Tensor, "b n D"], *args: Any, **named: Any
    ) -> Float[Tensor, "b n D"]:
        plain = all(given is None or given is False for given in (*args, *named.values()))
        if serve(x) and plain:  # neither a mask nor causal
            from croc.kernels import attention

            dtype = autocast_dtype(x.device, x.dtype)
            if attention.fits(x.shape[1], self.head_dim, dtype, x.device):
                return self.proj(attention.packed_attention(self.qkv(x), self.num_heads))
        return super().forward(x, *args, **named)


class PatchConv2d(nn.Conv2d):
    """A convolution whose windows do not overlap is a matrix product, and cuDNN's is slower."""

    def forward(self, input: Float[Tensor, "b c H W"]) -> Float[Tensor, "b D y x"]:
        height, width = self.kernel_size
        if not input.is_cuda or input.shape[2] % height or input.shape[3] % width:
            return super().forward(input)
        return self.multiply(input)

    def multiply(self, input: Float[Tensor, "b c H W"]) -> Float[Tensor, "b D y x"]:
        height, width = self.kernel_size
        patches = rearrange(input, "b c (y h) (x w) -> b y x (c h w)", h=height, w=width)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def autocast_dtype(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """The type in which matrix products are done there now."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


def replace_layers(vit: VisionTransformer) -> list[KeyedDropPath]:
    """All that we do otherwise in a ViT of timm's; its stochastic depths, in order."""
    take_over(vit.patch_embed.proj, PatchConv2d)
    take_over(vit.blocks[-1].get_submodule("attn.qkv"), SeenLinear)
    replace_in_blocks(vit)
    keyed = []
    for module in list(vit.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath):
                keyed.append(KeyedDropPath(child.drop_prob or 0.0))
                setattr(module, name, keyed[-1])
    return keyed


def replace_in_blocks(network: nn.Module) -> None:
    """Attention and MLP by those that know our kernels."""
    for module in network.modules():
        if type(module) is Attention and _is_plain(module):
            take_over(module, PackedAttention)
        if type(module) is Mlp and _is_exact_gelu(module.act) and take_over(module.fc1, LinearGelu):
            module.act = nn.Identity()


def _is_plain(attention: Attention) -> bool:
    """Whether nothing stands between projection, attention and projection."""
    between = attention.q_norm, attention.k_norm, attention.norm
    drops = attention.attn_drop.p or attention.proj_drop.p
    gate = getattr(attention, "gate", None)
    return not drops and gate is None and all(type(layer) is nn.Identity for layer in between)


def _is_exact_gelu(layer: nn.Module) -> bool:
    return isinstance(layer, nn.GELU) and layer.approximate == "none"


def take_over(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Make another kind of it: all that it holds stays, only `forward` differs.

    A layer that is not plainly of the kind's base stays what it is.
    """
    if type(layer) is not kind.__base__:
        return False
    layer.__class__ = kind
    return True
