"""Frozen backbones that give a feature to every patch: ViTs, ConvNets, and colors as a baseline."""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from croc.errors import UserError
from croc.method.backbone import Vit
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD, normalize
from croc.weights.record import Record, TimmModel, norm_patches

COLORS = "colors"
VIT_SIZES = {(192, 12): "Ti", (384, 12): "S", (768, 12): "B", (1024, 24): "L", (1280, 32): "H"}
"""Width and number of blocks, as the ViT papers name them."""
# CIE's XYZ of the linear sRGB primaries, each divided by that of the white point D65.
XYZ = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.0890, 0.1192 / 1.0890, 0.9505 / 1.0890),
)


@runtime_checkable
class DenseBackbone(Protocol):
    """Anything that gives a feature to every patch of an image."""

    name: str
    stride_px: int
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    """Of the pixels that the network was trained on, in 0 … 1."""

    def normalize(self, pixels: Float[Tensor, "B 3 h w"]) -> Float[Tensor, "B 3 h w"]:
        """Pixels in 0 … 1, as `features` expects them."""
        return normalize(pixels, self.mean, self.std)

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """Features of normalized images; a ViT concatenates its last `blocks` blocks."""
        ...


class FrozenBackbone(nn.Module, DenseBackbone):
    """A network for inference. `origin` is a line about its weights for people; `record` is what
    the network can be built from again, if anything."""

    def __init__(
        self, name: str, stride_px: int, origin: str = "", record: Record | None = None
    ) -> None:
        super().__init__()
        self.name, self.stride_px = name, stride_px
        self.origin, self.record = origin or name, record
        if isinstance(record, TimmModel):
            self.mean, self.std = record.mean, record.std

    def extra_repr(self) -> str:
        """What is unusual; in the fingerprint, since it changes the features."""
        is_usual = (*self.mean, *self.std) == (*IMAGENET_MEAN, *IMAGENET_STD)
        return "" if is_usual else f"mean={self.mean}, std={self.std}"


class VitBackbone(FrozenBackbone):
    """The patch tokens of a ViT's last blocks, the final norm applied to each."""

    def __init__(self, vit: Vit, name: str, origin: str = "", record: Record | None = None) -> None:
        norm_patches(vit)
        patch_embed: Any = vit.patch_embed
        super().__init__(name, patch_embed.patch_size[0], origin, record)
        self.vit: Any = vit.eval().requires_grad_(False)

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        for side_px in images.shape[2:]:
            check_fit(self, side_px, blocks)
        images = images.to(self.vit.patch_embed.proj.weight.dtype)
        features: Any = self.vit.forward_intermediates(
            images, indices=blocks, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return torch.cat(features, dim=1)


class ConvBackbone(FrozenBackbone):
    """The last stage of a ConvNet, dilated to an output stride of 16."""

    def __init__(
        self, network: Any, name: str, origin: str = "", record: Record | None = None
    ) -> None:
        super().__init__(name, network.feature_info.reduction()[-1], origin, record)
        self.network = network.eval().requires_grad_(False)

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """`blocks` is for ViTs only: a ConvNet gives its last stage."""
        return self.network(images.to(next(self.network.parameters()).dtype))[-1]


class ColorBackbone(FrozenBackbone):
    """A baseline without a network: colors and textures of patches of 16 px."""

    def __init__(self) -> None:
        super().__init__(COLORS, stride_px=16)

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        return color_features(images, self.stride_px)


def check_fit(backbone: DenseBackbone, side_px: int, blocks: int = 1, flag: str = "images") -> None:
    """Refuse images that are not whole patches of a ViT, and more blocks than it has."""
    stride = backbone.stride_px
    if side_px % stride and not isinstance(backbone, ConvBackbone | ColorBackbone):
        below = side_px // stride * stride
        fitting = f"{below} or {below + stride}" if below else str(stride)
        raise UserError(
            f"{flag} of {side_px} px: not a multiple of {backbone.name}'s patch size "
            f"({stride} px); use {fitting} px"
        )
    if isinstance(backbone, VitBackbone) and blocks > (depth := len(backbone.vit.blocks)):
        raise UserError(f"{backbone.name} has {depth} blocks, not {blocks}: pass {depth} or fewer")


def fast_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor computes in it, some CPUs included."""
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type == "cuda" or native else torch.float32


def fingerprint(backbone: nn.Module) -> str:
    """A hash of the weights, their names and an unusual normalization, to tell results apart."""
    digest = hashlib.sha256()
    if isinstance(backbone, FrozenBackbone):
        digest.update(backbone.extra_repr().encode())
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def architecture(backbone: FrozenBackbone) -> str:
    """ViT-S/16, or timm's name."""
    if not isinstance(backbone, VitBackbone):
        return backbone.name.partition(".")[0]
    width, depth, patch = backbone.vit.embed_dim, len(backbone.vit.blocks), backbone.stride_px
    size = VIT_SIZES.get((width, depth))
    return f"ViT-{size}/{patch}" if size else f"ViT/{patch}, {depth} blocks of {width}"


def color_features(
    images: Float[Tensor, "B 3 h w"], patch_px: int
) -> Float[Tensor, "B 40 rows columns"]:
    """Mean and standard deviation, over each patch and over the 3 × 3 patches around it, of ten
    maps: R, G, B, L, a, b (CIELAB), and the absolute differences of L along both axes and both
    diagonals. The images are normalized with ImageNet's mean and standard deviation."""
    images = images.float()
    mean, std = (images.new_tensor(x)[:, None, None] for x in (IMAGENET_MEAN, IMAGENET_STD))
    rgb = (images * std + mean).clamp(0, 1)
    lab = cielab(rgb) / 50  # about as large as the others
    padded = F.pad(lab[:, :1], (1, 1, 1, 1), mode="replicate")
    center = padded[:, :, 1:-1, 1:-1]
    neighbors = (
        padded[:, :, 1:-1, 2:],
        padded[:, :, 2:, 1:-1],
        padded[:, :, 2:, 2:],
        padded[:, :, 2:, :-2],
    )
    maps = torch.cat([rgb, lab, *((neighbor - center).abs() for neighbor in neighbors)], dim=1)
    patch = [F.avg_pool2d(x, patch_px, ceil_mode=True) for x in (maps, maps.square())]
    around = [F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) for x in patch]
    statistics = [
        x
        for mean, square in (patch, around)
        for x in (mean, (square - mean.square()).clamp_min(0).sqrt())
    ]
    return torch.cat(statistics, dim=1)


def cielab(rgb: Float[Tensor, "B 3 h w"]) -> Float[Tensor, "B 3 h w"]:
    """L in 0 … 100, a and b, from sRGB in 0 … 1."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("xc,bchw->bxhw", rgb.new_tensor(XYZ), linear)
    root = torch.where(
        xyz > (6 / 29) ** 3, xyz.clamp_min(1e-9) ** (1 / 3), xyz * 841 / 108 + 4 / 29
    )
    x, y, z = root.unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)
