"""Which network a file holds, told by keys and shapes alone: neither the file's name nor a list of
prefixes is asked.

A network is found by its first layer (a ViT's patch embedding, a ResNet's 7×7 convolution); what
stands before that layer's name is its prefix, whatever wrappers it is made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from croc.errors import UserError
from croc.weights.files import check_room, first_line, repeats
from croc.weights.resnet import RESNET_STYLES, read_resnet
from croc.weights.vit import PATCHES, read_vit

MOMENTUM = {
    *("teacher", "encoder_k", "model_k", "key_encoder", "masknet"),
    *("target", "target_net", "target_network", "target_encoder", "target_model"),
    *("momentum_encoder", "momentum_backbone", "backbone_momentum"),
}
"""Networks that only trail another: where both are, these projects evaluate the other one."""
AVERAGED = {"ema", "model_ema", "state_dict_ema", "ema_state_dict"}

# Names for the log, by what only this project's files have; the first that fits is taken.
SIGNATURES = (
    (("modules.", "backbone.vit."), "CrOC checkpoint"),
    (("croc_loss.",), "the authors' CrOC full checkpoint"),
    (("dino_loss.",), "DINO full checkpoint"),
    (("ibot_loss.",), "iBOT full checkpoint"),
    (("masked_embed",), "iBOT"),
    (("decoder_pred.", "decoder_embed."), "MAE full checkpoint"),
    (("ls1.gamma", "mask_token"), "DINOv2"),
    (("encoder_q.", "decode_head."), "CP² full checkpoint"),
    (("patch_embed.", "projection_head.", "prototypes."), "Leopart"),
    (("maps_projector.",), "VICRegL full checkpoint"),
    (("queue2",), "DenseCL full checkpoint"),
    (("local_intra_head.",), "ORL full checkpoint"),
    (("online_net.",), "BYOL full checkpoint, OpenMMLab's"),
    (("online_network.",), "BYOL full checkpoint"),
    (("neck_k.",), "SoCo full checkpoint"),
    (("encoder_k.", "value_transform."), "PixPro"),
    (("encoder_q.fpn_",), "ReSim full checkpoint"),
    (("encoder_q.",), "MoCo full checkpoint"),
)


@dataclass(frozen=True)
class Recognised:
    """A file's network in timm's layout."""

    architecture: str
    """timm's name."""
    options: dict[str, Any]
    """For timm.create_model, beside the name."""
    weights: dict[str, Tensor]
    layout: str
    """For people: whose layout, and which of its networks."""
    dropped: list[str] = field(default_factory=list)
    """Tensors of the file that are not of the network: heads, queues, decoders, other networks."""

    @property
    def is_vit(self) -> bool:
        return "patch_embed.proj.weight" in self.weights


def recognise(tensors: Mapping[str, Tensor], source: str = "the file") -> Recognised:
    """The network in a file's tensors, named by their dotted way in."""
    found = dict(_networks(tensors))
    if not found:
        first = ", ".join(list(tensors)[:5]) or "none"
        raise UserError(
            f"{source} holds no ViT and no ResNet of a known layout; its first keys: {first}"
        )
    prefix = _choose(found, tensors, source)
    own = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    try:
        if found[prefix] == PATCHES:
            architecture, options, weights, used = read_vit(own, prefix, source)
        else:
            architecture, options, weights, used = read_resnet(own, found[prefix], source)
            check_room(weights)
    except (IndexError, KeyError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"{source} holds a network of impossible shapes ({first_line(error)})"
        ) from None
    check_numbers(weights, source)
    kept = {prefix + name for name in used}
    dropped = [name for name in tensors if name not in kept]
    return Recognised(architecture, options, weights, _describe(tensors, found, prefix), dropped)


def check_numbers(weights: Mapping[str, Tensor], source: str) -> None:
    """The numbers are numbers."""
    if odd := [name for name, value in weights.items() if value.is_complex()]:
        raise UserError(f"{source} holds complex numbers ({', '.join(odd[:2])}), no weights")
    broken = [name for name, value in weights.items() if not value.float().isfinite().all()]
    if broken:
        raise UserError(
            f"{source} holds weights that are not finite, in {len(broken)} of {len(weights)} "
            f"tensors ({', '.join(broken[:2])}): its training went astray"
        )


def _networks(tensors: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Prefix and first layer of every network there is."""
    found = []
    for name, value in tensors.items():
        for first in (PATCHES, *RESNET_STYLES):
            if not (name == first or name.endswith(f".{first}")) or value.ndim != 4:
                continue
            kernel = tuple(value.shape[1:])
            if (kernel == (3, 7, 7)) if first != PATCHES else kernel[0] == 3:
                found.append((name.removesuffix(first), first))
                break  # "stem.conv1.weight" ends in "conv1.weight" as well
    return found


def _choose(found: Mapping[str, str], tensors: Mapping[str, Tensor], source: str) -> str:
    """The network that its project evaluates."""
    words = {prefix: set(prefix.split(".")) for prefix in found}
    everywhere = set().union(*words.values())
    left = list(found)
    if averaged := [prefix for prefix in left if words[prefix] & AVERAGED]:
        left = averaged
    if {"student", "teacher"} <= everywhere:
        left = [prefix for prefix in left if "teacher" in words[prefix]] or left
    else:
        left = [prefix for prefix in left if not words[prefix] & MOMENTUM] or left
    # OpenMMLab's "backbone." is the shortest of the names of one network.
    best = min(left, key=lambda prefix: prefix.count("."))
    ours = tensors[best + found[best]]
    rivals = [
        prefix
        for prefix in left
        if prefix != best and not _equal(tensors[prefix + found[prefix]], ours)
    ]
    if rivals:
        names = ", ".join(prefix.rstrip(".") or "the outermost" for prefix in (best, *rivals))
        raise UserError(f"{source} holds several networks ({names}): save the one that is meant")
    return best


def _equal(one: Tensor, other: Tensor) -> bool:
    """NaN is no number, but it is no second network either."""
    if one.shape != other.shape or repeats(one) or repeats(other):
        return False
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _describe(tensors: Mapping[str, Tensor], found: Mapping[str, str], prefix: str) -> str:
    taken = f", from {prefix.rstrip('.')}" if prefix else ""
    for parts, name in SIGNATURES:
        if all(any(part in each for each in tensors) for part in parts):
            return name + taken
    if found[prefix] == PATCHES:
        return f"ViT in timm's keys{taken}"
    return f"ResNet in {RESNET_STYLES[found[prefix]]} keys{taken}"
