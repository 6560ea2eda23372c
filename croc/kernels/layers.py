"""Layers that replace timm's where our kernels, or a plain product, are faster; the parameters and
their names stay."""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn

from croc import kernels
from croc.method.types import autocast_dtype


class LinearGelu(nn.Linear):
    """GELU(xWᵀ + b)."""

    def forward(self, input: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch D"]:
        kernel, dtype = kernels.find("gelu", input), autocast_dtype(input.device, input.dtype)
        if kernel is None or self.bias is None or dtype != torch.bfloat16:
            return F.gelu(F.linear(input, self.weight, self.bias))
        # The bias is detached here since `gelu` is where it gets its gradient.
        return kernel.gelu(F.linear(input, self.weight, self.bias.detach()), self.bias)


class PackedAttention(Attention):
    """Attention of every token to every other, from the packed output of the qkv layer."""

    def forward(
        self, x: Float[Tensor, "b n D"], *args: Any, **named: Any
    ) -> Float[Tensor, "b n D"]:
        kernel, dtype = kernels.find("attention", x), autocast_dtype(x.device, x.dtype)
        # Neither a mask nor causal.
        plain = all(value is None or value is False for value in (*args, *named.values()))
        if kernel is not None and plain and kernel.fits(x.shape[1], self.head_dim, dtype, x.device):
            return self.proj(kernel.packed_attention(self.qkv(x), self.num_heads))
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


def replace_layers(network: nn.Module) -> None:
    """Replace attention, MLPs and the patch embedding, where they have no extra parts."""
    for module in network.modules():
        if type(module) is Attention and _is_plain(module):
            convert(module, PackedAttention)
        if type(module) is Mlp and _is_exact_gelu(module.act) and convert(module.fc1, LinearGelu):
            module.act = nn.Identity()
        if isinstance(module, PatchEmbed):
            convert(module.proj, PatchConv2d)


def _is_plain(attention: Attention) -> bool:
    """Whether nothing is between projection, attention and projection."""
    between = attention.q_norm, attention.k_norm, attention.norm
    drops = attention.attn_drop.p or attention.proj_drop.p
    gate = getattr(attention, "gate", None)
    return not drops and gate is None and all(type(layer) is nn.Identity for layer in between)


def _is_exact_gelu(layer: nn.Module) -> bool:
    return isinstance(layer, nn.GELU) and layer.approximate == "none"


def convert(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Change the class of a layer, and with it `forward`; its parameters stay.

    A layer that is not exactly of the base class is left alone.
    """
    if type(layer) is not kind.__base__:
        return False
    layer.__class__ = kind
    return True
