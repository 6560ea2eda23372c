"""How MAE's networks start: Xavier's weights, and places that are not learned."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from croc.method.backbone import Backbone


def start_as_mae(backbone: Backbone) -> None:
    vit = backbone.vit
    start_linear_layers(vit)
    projection = vit.patch_embed.proj.weight
    nn.init.xavier_uniform_(projection.view(len(projection), -1))
    if vit.cls_token is not None:
        nn.init.normal_(vit.cls_token, std=0.02)
    if vit.pos_embed is not None:
        grid = vit.patch_embed.grid_size[0]
        vit.pos_embed.data.zero_()
        vit.pos_embed.data[0, -(grid**2) :] = sines_and_cosines(grid, backbone.width)
        vit.pos_embed.requires_grad_(False)


def start_linear_layers(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def sines_and_cosines(grid: int, width: int) -> Float[Tensor, "N {width}"]:
    """Fixed places, row by row: a quarter each of sines and cosines of x, then of y."""
    rates = 1 / 10_000 ** (torch.arange(width // 4).double() / (width // 4))
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    waves = [wave(c.flatten()[:, None] * rates) for c in (x, y) for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, dim=1).float()
