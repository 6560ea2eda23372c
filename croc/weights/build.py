"""From what was recognised to a network of timm's, every tensor of it filled."""

from typing import Any

import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.errors import UserError
from croc.weights.layouts import Recognised

COUNTERS = "num_batches_tracked"


def build_network(found: Recognised, image_px: int, source: str = "the file") -> nn.Module:
    """A ViT for images of that size, or a ConvNet dilated to an output stride of 16."""
    with torch.random.fork_rng(devices=[]):  # what timm draws is overwritten, and is no one's turn
        return _build(found, image_px, source)


def _build(found: Recognised, image_px: int, source: str) -> nn.Module:
    if not found.is_vit:
        network = timm.create_model(found.architecture, features_only=True, output_stride=16)
        fill(network, found.weights, source)
        return network
    patch_px = found.options["patch_size"]
    if patch_px > image_px:
        raise UserError(f"{source}: patches of {patch_px} px, images of {image_px} px")
    vit: Any = timm.create_model(
        found.architecture,
        num_classes=0,
        img_size=image_px,
        dynamic_img_size=True,
        **found.options,
    )
    fill(vit, found.weights, source)
    return vit


def fill(network: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Weights of timm's layout into a network, a ViT's positions resampled to its grid."""
    if isinstance(network, VisionTransformer):
        weights = {**weights, "pos_embed": fit_positions(network, weights["pos_embed"])}
    check_tensors(network, weights, source)
    network.load_state_dict(weights, strict=False)


def check_tensors(network: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Whether all that a network needs is there, in its shape, and nothing else."""
    needed = network.state_dict()
    missing = [name for name in needed if name not in weights and not name.endswith(COUNTERS)]
    extra = [name for name in weights if name not in needed]
    unlike = [
        f"{name} is {'×'.join(map(str, weights[name].shape))} there, "
        f"{'×'.join(map(str, value.shape))} here"
        for name, value in needed.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if unlike or missing or extra:
        lacks = f"it lacks {', '.join(missing[:3])}" if missing else ""
        more = f"it has {', '.join(extra[:3])} too many" if extra else ""
        said = "; ".join(part for part in (*unlike[:1], lacks, more) if part)
        raise UserError(f"{source} does not fit: {said}")


def fit_positions(vit: VisionTransformer, positions: Tensor) -> Tensor:
    """A position embedding of any square grid for the grid of this ViT, by timm's resampling."""
    prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
    rows, columns = vit.patch_embed.grid_size
    return resample_abs_pos_embed(
        positions.float(), new_size=[rows, columns], num_prefix_tokens=prefix
    )
