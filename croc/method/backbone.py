"""Any timm ViT as the backbone: its tokens, and the last block's queries, keys, values, attention.

During training the positions may be those of a random window of the grid, one for each view: with
the whole grid's a token knows where in its view it is. Where crops share most of an image, a
cluster's row in one view then predicts its row in the other, and no content is needed.
"""

import difflib
from typing import Any, cast

import timm
import torch
from einops import rearrange
from jaxtyping import Float, Int64
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.layers import replace_layers
from croc.method.randomness import uniform
from croc.method.types import Tokens, autocast_dtype

WHOLE_GRID = (1.0, 1.0)
"""The sides of position windows that are the grid itself."""


class Backbone(nn.Module):
    """A ViT on views: `forward` for the student, `describe` for what the clustering needs."""

    _keep: Tensor

    def __init__(self, config: ModelConfig, view_px: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.vit = _create_vit(config, view_px, drop_path)
        self.patch_px: int = self.vit.patch_embed.patch_size[0]
        self.width: int = self.vit.embed_dim
        self._sides = config.position_window
        self._drop_paths = replace_layers(self.vit)
        keep = torch.tensor([1 - drop_path.rate for drop_path in self._drop_paths])
        self.register_buffer("_keep", keep, persistent=False)
        if view_px % self.patch_px:
            raise UserError(
                f"views of {view_px} px are not a whole number of {self.patch_px} px patches; "
                f"try --views.size-px {max(1, round(view_px / self.patch_px)) * self.patch_px}"
            )

    def forward(
        self, pixels: Float[Tensor, "M B 3 h w"], keys: Int64[Tensor, "B"] | None = None
    ) -> tuple[Float[Tensor, "M B D"], Float[Tensor, "M B N D"]]:
        """CLS and patch tokens, after the final norm; with `keys`, training's randomness is on:
        windows of positions, and the student's stochastic depth."""
        self._set_drop_paths(len(pixels), keys)
        return self._finish(self.vit.blocks(self._embed_views(pixels, keys)), len(pixels))

    def encode(
        self,
        pixels: Float[Tensor, "B 3 h w"],
        visible: Int64[Tensor, "B V"],
        keys: Int64[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B V D"]]:
        """CLS and the visible patches, without the others; `keys` as in `forward`."""
        self._set_drop_paths(1, keys)
        tokens, prefix = self._embed(pixels), self.vit.num_prefix_tokens
        places = visible[..., None].expand(-1, -1, tokens.shape[-1])
        seen = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, places)], dim=1)
        cls, patches = self._finish(self.vit.blocks(seen), views=1)
        return cls[0], patches[0]

    def describe(
        self, pixels: Float[Tensor, "M B 3 h w"], kind: str, keys: Int64[Tensor, "B"] | None = None
    ) -> Tokens:
        """The tokens, with the keys, queries or values of the last block, or its output (last);
        `keys` draw windows of positions, as in `forward`."""
        self._set_drop_paths(len(pixels), None)
        before = self.vit.blocks[:-1](self._embed_views(pixels, keys))
        return self._describe_last(before, len(pixels), kind)

    def _describe_last(self, before: Float[Tensor, "b n D"], views: int, kind: str) -> Tokens:
        last: Any = self.vit.blocks[-1]
        last.attn.qkv.outputs = []
        cls, patches = self._finish(last(before), views)
        (output,), last.attn.qkv.outputs = last.attn.qkv.outputs, None
        qkv = rearrange(output, "b n (s h d) -> s b h n d", s=3, h=last.attn.num_heads)
        queries, keys, values = last.attn.q_norm(qkv[0]), last.attn.k_norm(qkv[1]), qkv[2]
        attention = self._attention(queries, keys, last.attn.scale, views)
        if kind == "last":
            attention = attention.mean(dim=2, keepdim=True)
            return Tokens(cls, patches, patches[:, :, None], cls[:, :, None], attention)
        chosen = {"queries": queries, "keys": keys, "values": values}[kind]
        chosen = rearrange(chosen, "(m b) h n d -> m b h n d", m=views)
        prefix = self.vit.num_prefix_tokens
        return Tokens(cls, patches, chosen[..., prefix:, :], chosen[..., 0, :], attention)

    def _embed_views(
        self, pixels: Float[Tensor, "M B 3 h w"], keys: Int64[Tensor, "B"] | None
    ) -> Float[Tensor, "b n D"]:
        views, windows = len(pixels), None
        if keys is not None and self._sides != WHOLE_GRID:
            # Teacher and student have different ones, so that they share no position.
            purpose = f"position window of the {'student' if self.training else 'teacher'}"
            windows = draw_windows(keys, purpose, views, self._sides)
        return self._embed(pixels.flatten(0, 1), windows)

    def _embed(
        self, pixels: Float[Tensor, "b 3 h w"], windows: Float[Tensor, "b 2 2"] | None = None
    ) -> Float[Tensor, "b n D"]:
        vit = self.vit
        patches = vit.patch_embed(pixels)
        x = vit._pos_embed(patches)
        if windows is not None:
            prefix, (g, h) = vit.num_prefix_tokens, vit.patch_embed.grid_size
            grid = cast(Tensor, vit.pos_embed)[0, -g * h :].unflatten(0, (g, h))
            usual = vit._pos_embed(torch.zeros_like(patches[:1]))[:, prefix:]
            moved = positions_of(windows, grid, *patches.shape[1:3]) - usual
            x = torch.cat([x[:, :prefix], x[:, prefix:] + moved], dim=1)
        x = vit.norm_pre(vit.patch_drop(x))
        # All blocks add to this: in autocast's type it needs half of the memory and bandwidth.
        return x.to(autocast_dtype(x.device, x.dtype))

    def _finish(self, x: Float[Tensor, "b n D"], views: int) -> tuple[Tensor, Tensor]:
        x = rearrange(self.vit.norm(x), "(m b) n d -> m b n d", m=views)
        return x[:, :, 0], x[:, :, self.vit.num_prefix_tokens :]

    def _attention(
        self,
        queries: Float[Tensor, "b H n d"],
        keys: Float[Tensor, "b H n d"],
        scale: float,
        views: int,
    ) -> Float[Tensor, "M B H N"]:
        """Softmax of the CLS query over the patches, without registers and CLS itself."""
        patches = keys[:, :, self.vit.num_prefix_tokens :].float()
        logits = torch.einsum("bhd,bhnd->bhn", queries[:, :, 0].float() * scale, patches)
        return rearrange(logits.softmax(dim=-1), "(m b) h n -> m b h n", m=views)

    def _set_drop_paths(self, views: int, keys: Int64[Tensor, "B"] | None) -> None:
        if keys is None or not self.training or not self._drop_paths:
            for drop_path in self._drop_paths:
                drop_path.scale = None
            return
        for drop_path, scale in zip(self._drop_paths, self._draw_drop_paths(views, keys).unbind()):
            drop_path.scale = scale

    def _draw_drop_paths(self, views: int, keys: Int64[Tensor, "B"]) -> Float[Tensor, "L b"]:
        """For each of the L stochastic depths, the factor of each view: 0, or more than 1."""
        draws = uniform(keys, "drop path", len(self._drop_paths), views)
        keep = self._keep[:, None]
        scales = (draws < keep).float() / keep
        return rearrange(scales, "b l m -> l (m b)")


def _create_vit(config: ModelConfig, view_px: int, drop_path: float) -> VisionTransformer:
    options = {"patch_size": config.patch_px, "depth": config.depth}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if config.name not in timm.list_models():
        near = difflib.get_close_matches(config.name, timm.list_models("vit*"), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "see timm.list_models('vit*')"
        raise UserError(f"--model.name: timm has no model {config.name!r}; {hint}")
    refusal = UserError(
        f"--model.name: {config.name} is no plain ViT with a CLS token; try vit_small_patch16_224"
    )
    try:
        vit: Any = timm.create_model(
            config.name,
            pretrained=False,
            num_classes=0,
            global_pool="token",
            img_size=view_px,
            dynamic_img_size=True,
            drop_path_rate=drop_path,
            **changes,
        )
    except (TypeError, AssertionError, RuntimeError, ValueError):
        raise refusal from None
    plain = isinstance(vit, VisionTransformer) and type(vit.patch_embed) is PatchEmbed
    attention = getattr(vit.blocks[-1], "attn", None) if plain else None
    if not hasattr(attention, "qkv") or vit.cls_token is None:
        raise refusal
    return vit


def draw_windows(
    keys: Int64[Tensor, "B"], purpose: str, views: int, sides: tuple[float, float]
) -> Float[Tensor, "b 2 2"]:
    """For the M·B views, in rows and then in columns: start and side of the window, in grids."""
    draws = uniform(keys, purpose, views, 2, 2).transpose(0, 1).flatten(0, 1)
    least, most = sides
    side = least + (most - least) * draws[..., 0]
    return torch.stack([(1 - side) * draws[..., 1], side], dim=-1)


def positions_of(
    windows: Float[Tensor, "b 2 2"], grid: Float[Tensor, "g h D"], rows: int, columns: int
) -> Float[Tensor, "b n D"]:
    """`rows` × `columns` positions spread over each window, interpolated from those of the grid."""
    down = _interpolation(windows[:, 0], rows, grid.shape[0])
    across = _interpolation(windows[:, 1], columns, grid.shape[1])
    return torch.einsum("brg,ghd,bch->brcd", down, grid, across).flatten(1, 2)


def _interpolation(axis: Float[Tensor, "b 2"], count: int, length: int) -> Float[Tensor, "b n g"]:
    """The weight of each of the grid's positions in each of the window's."""
    middles = (torch.arange(count, device=axis.device) + 0.5) / count
    places = (axis[:, :1] + axis[:, 1:] * middles) * length - 0.5
    distances = places.clamp(0, length - 1)[..., None] - torch.arange(length, device=axis.device)
    return (1 - distances.abs()).clamp_min(0)


def start_as_mae(backbone: Backbone) -> None:
    """MAE's initial weights: Xavier's, and fixed positions."""
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
    """Fixed positions, row by row: a quarter each of sines and cosines of x, then of y."""
    rates = 1 / 10_000 ** (torch.arange(width // 4).double() / (width // 4))
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    waves = [wave(c.flatten()[:, None] * rates) for c in (x, y) for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, dim=1).float()
