"""A last block that tells every token what it is in: the mean of all tokens, added to each.

It is a block of the ViT like the others, so that whatever loads the network has it too: queries
and keys are zero, so that everything is attended to alike; values and projection are the
identity, times a number; the MLP gives nothing.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from croc.api.photographs import features
from croc.backbone import Backbone
from croc.config import ModelConfig
from croc.errors import UserError
from croc.evals.features import VitBackbone
from croc.export.command import Export
from croc.export.source import Source, open_source
from croc.photographs import own_photographs

LEAST, MOST = 0.001, 100.0
"""What is less does nothing; of more, nothing is left of the token itself."""


def open_asked(asked: Export) -> Source:
    source = open_source(asked.run, asked.licence)
    return source if asked.context is None else add_context(source, asked.context)


def add_context(source: Source, weight: float) -> Source:
    """The network with one block more, by which x becomes x + weight · deviation · mean(norm(x)).

    The deviation is that of a token's own numbers, so that `weight` is how much of the mean there
    is for one of the token.
    """
    if not LEAST <= weight <= MOST:
        raise UserError(
            f"--context {weight:g}: give a number in {LEAST:g} … {MOST:g}; "
            "with 1 there is as much of the mean as of the token"
        )
    if source.page.context is not None:
        raise UserError(f"--context: {source.name} has such a block already")
    page = replace(source.page, depth=source.page.depth + 1, context=weight)
    model = ModelConfig(page.model, patch_px=page.patch_px, depth=page.depth)
    with torch.random.fork_rng(devices=[]):  # what timm draws is overwritten, and is no one's turn
        longer = Backbone(model, page.image_px).vit
    longer.load_state_dict(source.backbone.vit.state_dict(), strict=False)
    _average(longer.blocks[-1], weight * _deviation(source.backbone, page.image_px))
    return replace(source, page=page, backbone=VitBackbone(longer, source.backbone.name))


@torch.no_grad()
def _average(block: nn.Module, scale: float) -> None:
    for name, parameter in block.named_parameters():
        # Norms and layer scales, which timm calls gamma, leave what they get as it is.
        one = parameter.ndim == 1 and not name.endswith("bias")
        parameter.fill_(1.0 if one else 0.0)
    projection = block.get_parameter("attn.proj.weight")
    identity = torch.eye(len(projection))
    block.get_parameter("attn.qkv.weight")[-len(identity) :].copy_(identity)
    projection.copy_(scale * identity)


def _deviation(backbone: VitBackbone, image_px: int) -> float:
    """Of a token's numbers before the final norm, on the photographs that ship."""
    seen: list[Tensor] = []
    hook = backbone.vit.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    features(own_photographs(), backbone, size_px=(image_px, image_px))
    hook.remove()
    return torch.cat(seen).float().std(dim=-1).mean().item()
