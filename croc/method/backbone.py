"""timm's ViTs as the backbone: their tokens, and the last block's queries, keys, values, attention.

Two families of timm are supported: `VisionTransformer` (ViT, DINO, DINOv2) and `Eva`, whose
positions may be rotary (DINOv3, EVA-02, RoPE-ViT). Queries and keys are taken before the rotation,
so that their cosine compares content; the clustering adds positions itself. The CLS attention is
that of the network, with rotated keys.
"""

import difflib
from collections.abc import Iterable
from typing import Any, cast

import timm
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from croc.config import ModelConfig
from croc.errors import UserError
from croc.kernels.layers import convert, replace_layers
from croc.method.position_windows import (
    draw_rotary_windows,
    draw_windows,
    learned_positions,
    rotary_positions,
)
from croc.method.randomness import uniform
from croc.method.types import Tokens, autocast_dtype

WHOLE_GRID = (1.0, 1.0)
"""Sides of position windows that cover the whole grid."""
Vit = VisionTransformer | Eva


class KeyedDropPath(nn.Module):
    """Stochastic depth whose random draw is set from outside, keyed by the sample."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.scale: Tensor | None = None

    def forward(self, x: Float[Tensor, "b n D"]) -> Float[Tensor, "b n D"]:
        return x if self.scale is None else x * self.scale.to(x.dtype)[:, None, None]


class RecordingLinear(nn.Linear):
    """A linear layer that appends its outputs to a list while it has one."""

    outputs: list[Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        if self.outputs is not None:
            self.outputs.append(output)
        return output


class Backbone(nn.Module):
    """A ViT on views: `forward` for the student, `forward_tokens` for what the clustering needs."""

    _keep: Tensor

    def __init__(self, config: ModelConfig, view_px: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.vit: Any = _create_vit(config, view_px, drop_path)
        self._mixed: bool = getattr(self.vit, "rope_mixed", False)
        self.patch_px: int = self.vit.patch_embed.patch_size[0]
        self.width: int = self.vit.embed_dim
        self._sides, self._recomputes = config.position_window, config.grad_checkpointing
        replace_layers(self.vit)
        self._recording = _record_projections(self.vit.blocks[-1].attn)
        self._drop_paths = _key_drop_paths(self.vit)
        self._rope: Any = getattr(self.vit, "rope", None)
        keep = torch.tensor([1 - drop_path.rate for drop_path in self._drop_paths])
        self.register_buffer("_keep", keep, persistent=False)
        if config.train_blocks is not None:
            self._freeze_below(config.train_blocks)
        if view_px % self.patch_px:
            raise UserError(
                f"views of {view_px} px are not a whole number of {self.patch_px} px patches; "
                f"try --views.size-px {max(1, round(view_px / self.patch_px)) * self.patch_px}"
            )

    def _freeze_below(self, trained: int) -> None:
        if trained > (depth := len(self.vit.blocks)):
            raise UserError(f"--model.train-blocks {trained}: the network has {depth} blocks")
        self.vit.requires_grad_(False)
        for part in (*self.vit.blocks[-trained:], self.vit.norm):
            part.requires_grad_(True)

    def forward(
        self,
        pixels: Float[Tensor, "M B 3 h w"],
        sample_keys: Int64[Tensor, "B"] | None = None,
        hidden: tuple[Bool[Tensor, "M B N"], Float[Tensor, "D"]] | None = None,
    ) -> tuple[Float[Tensor, "M B D"], Float[Tensor, "M B N D"]]:
        """CLS and patch tokens, after the final norm. `sample_keys` enable the randomness of
        training: position windows, and the student's stochastic depth. `hidden` contains the
        patches to replace, and their replacement."""
        self._set_drop_paths(len(pixels), sample_keys)
        windows = self._draw_windows(len(pixels), sample_keys)
        x, rope = self._embed(pixels.flatten(0, 1), windows, hidden)
        return self._finish(self._run_blocks(x, rope), len(pixels))

    def encode(
        self,
        pixels: Float[Tensor, "B 3 h w"],
        visible: Int64[Tensor, "B V"],
        sample_keys: Int64[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B V D"]]:
        """CLS and patch tokens of the visible patches only; `sample_keys` as in `forward`."""
        self._set_drop_paths(1, sample_keys)
        (tokens, rope), prefix = self._embed(pixels), self.vit.num_prefix_tokens
        index = visible[..., None].expand(-1, -1, tokens.shape[-1])
        tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, index)], dim=1)
        if rope is not None:
            chosen = rope[..., visible, :]
            rope = chosen.transpose(1, 2) if self._mixed else chosen[:, None]
        cls, patches = self._finish(self._run_blocks(tokens, rope), views=1)
        return cls[0], patches[0]

    def forward_tokens(
        self,
        pixels: Float[Tensor, "M B 3 h w"],
        kind: str,
        sample_keys: Int64[Tensor, "B"] | None = None,
    ) -> Tokens:
        """The tokens, with the keys, queries or values of the last block, or its output (last);
        `sample_keys` draw position windows, as in `forward`."""
        self._set_drop_paths(len(pixels), None)
        windows = self._draw_windows(len(pixels), sample_keys)
        x, rope = self._embed(pixels.flatten(0, 1), windows)
        return self._forward_last(self._run_blocks(x, rope, stop=-1), rope, len(pixels), kind)

    def _run_blocks(
        self, x: Float[Tensor, "b n D"], rope: Tensor | None, stop: int | None = None
    ) -> Float[Tensor, "b n D"]:
        for number, block in enumerate(self.vit.blocks[:stop]):
            options = self._block_options(rope, number)
            if self._recomputes and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False, **options)
            else:
                x = block(x, **options)
        return x

    def _block_options(self, rope: Tensor | None, block: int) -> dict[str, Any]:
        """The rotations, which in mixed networks are different for each block."""
        if rope is None:
            return {}
        return {"rope": rope[block] if self._mixed else rope}

    def _forward_last(
        self, before: Float[Tensor, "b n D"], rope: Tensor | None, views: int, kind: str
    ) -> Tokens:
        last: Any = self.vit.blocks[-1]
        options = self._block_options(rope, -1)
        outputs: list[Tensor] = []
        for layer in self._recording:
            layer.outputs = outputs
        cls, patches = self._finish(last(before, **options), views)
        for layer in self._recording:
            layer.outputs = None
        parts = outputs if len(outputs) == 3 else outputs[0].chunk(3, dim=-1)
        width = last.attn.head_dim
        queries, keys, values = (rearrange(x, "b n (h d) -> b h n d", d=width) for x in parts)
        queries, keys = last.attn.q_norm(queries), last.attn.k_norm(keys)
        group = queries.shape[1] // keys.shape[1]
        if group > 1:  # several queries share keys and values
            keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        # The CLS query attends to the patches, without registers and CLS itself.
        prefix = self.vit.num_prefix_tokens
        cls_queries, patch_keys = queries[:, :, 0], keys[:, :, prefix:]
        if options:
            rotate_half = last.attn.rotate_half
            patch_keys = apply_rot_embed_cat(patch_keys.float(), options["rope"], half=rotate_half)
        scaled = cls_queries.float() * last.attn.scale
        attention = torch.einsum("bhd,bhnd->bhn", scaled, patch_keys.float()).softmax(dim=-1)
        attention = rearrange(attention, "(m b) h n -> m b h n", m=views)
        if kind == "last":
            attention = attention.mean(dim=2, keepdim=True)
            return Tokens(cls, patches, patches[:, :, None], cls[:, :, None], attention)
        chosen = {"queries": queries, "keys": keys, "values": values}[kind]
        chosen = rearrange(chosen, "(m b) h n d -> m b h n d", m=views)
        return Tokens(cls, patches, chosen[..., prefix:, :], chosen[..., 0, :], attention)

    def _draw_windows(
        self, views: int, sample_keys: Int64[Tensor, "B"] | None
    ) -> Float[Tensor, "b 2 2"] | None:
        """Windows for learned and rotary positions, or DINOv3's augmentation of rotary ones, whose
        networks have no learned positions. None for the whole grid."""
        if sample_keys is None:
            return None
        if self._sides != WHOLE_GRID:
            # Teacher and student have different windows, so that they share no positions.
            purpose = f"position window of the {'student' if self.training else 'teacher'}"
            return draw_windows(sample_keys, purpose, views, self._sides)
        if self._rope is not None and self.training:  # only in the student, as in DINOv3
            return draw_rotary_windows(self._rope, sample_keys, views)
        return None

    def _embed(
        self,
        pixels: Float[Tensor, "b 3 h w"],
        windows: Float[Tensor, "b 2 2"] | None = None,
        hidden: tuple[Bool[Tensor, "M B N"], Float[Tensor, "D"]] | None = None,
    ) -> tuple[Float[Tensor, "b n D"], Tensor | None]:
        """Tokens before the blocks, and rotations. Position windows replace the grid's learned and
        rotary positions."""
        vit = self.vit
        patches = vit.patch_embed(pixels)
        if hidden is not None:
            mask, mask_token = hidden
            mask = mask.reshape(*patches.shape[:3], 1)
            patches = torch.where(mask, mask_token.to(patches.dtype), patches)
        x, rope = self._add_positions(patches)
        if windows is not None and vit.pos_embed is not None:
            prefix, (g, h) = vit.num_prefix_tokens, vit.patch_embed.grid_size
            grid = cast(Tensor, vit.pos_embed)[0, -g * h :].unflatten(0, (g, h))
            usual = self._add_positions(torch.zeros_like(patches[:1]))[0][:, prefix:]
            moved = learned_positions(windows, grid, *patches.shape[1:3]) - usual
            x = torch.cat([x[:, :prefix], x[:, prefix:] + moved], dim=1)
        if windows is not None and rope is not None:
            rope = rotary_positions(self._rope, windows, *patches.shape[1:3]).to(rope.dtype)
        x = vit.norm_pre(x)
        # All blocks add to this; in the dtype of autocast, it takes half the memory and bandwidth.
        return x.to(autocast_dtype(x.device, x.dtype)), rope

    def _add_positions(self, patches: Float[Tensor, "b y x D"]) -> tuple[Tensor, Tensor | None]:
        """Prepend CLS and registers; also return rotations if positions are rotary."""
        placed: Any = self.vit._pos_embed(patches)
        return placed if isinstance(self.vit, Eva) else (placed, None)

    def _finish(self, x: Float[Tensor, "b n D"], views: int) -> tuple[Tensor, Tensor]:
        x = rearrange(self.vit.norm(x), "(m b) n d -> m b n d", m=views)
        return x[:, :, 0], x[:, :, self.vit.num_prefix_tokens :]

    def _set_drop_paths(self, views: int, sample_keys: Int64[Tensor, "B"] | None) -> None:
        scales: Iterable[Tensor | None] = [None] * len(self._drop_paths)
        if sample_keys is not None and self.training and self._drop_paths:
            scales = self._draw_drop_paths(views, sample_keys).unbind()
        for drop_path, scale in zip(self._drop_paths, scales):
            drop_path.scale = scale

    def _draw_drop_paths(self, views: int, sample_keys: Int64[Tensor, "B"]) -> Float[Tensor, "L b"]:
        """The factor of each view in each of the L stochastic depths: 0, or more than 1."""
        draws = uniform(sample_keys, "drop path", len(self._drop_paths), views)
        keep = self._keep[:, None]
        scales = (draws < keep).float() / keep
        return rearrange(scales, "b l m -> l (m b)")


def _record_projections(attention: Any) -> list[RecordingLinear]:
    """The layers that compute queries, keys and values: a joint one, or three."""
    if hasattr(attention, "qkv_bias_separate"):
        attention.qkv_bias_separate = True  # else EvaAttention reads only the weight of the layer
    names = ("q_proj", "k_proj", "v_proj") if attention.qkv is None else ("qkv",)
    layers = [getattr(attention, name) for name in names]
    for layer in layers:
        convert(layer, RecordingLinear)
    return layers


def _key_drop_paths(vit: nn.Module) -> list[KeyedDropPath]:
    """Replace timm's stochastic depths; returns ours, in order."""
    keyed = []
    for module in list(vit.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath):
                keyed.append(KeyedDropPath(child.drop_prob or 0.0))
                setattr(module, name, keyed[-1])
    return keyed


def _create_vit(config: ModelConfig, view_px: int, drop_path: float) -> Vit:
    options = {"patch_size": config.patch_px, "depth": config.depth}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if config.name not in timm.list_models():
        near = difflib.get_close_matches(config.name, timm.list_models("vit*"), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "see timm.list_models('vit*')"
        raise UserError(f"--model.name: timm has no model {config.name!r}; {hint}")
    refusal = UserError(
        f"--model.name: {config.name} is not a ViT with a CLS token; try vit_small_patch16_224"
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
    plain = isinstance(vit, Vit) and type(vit.patch_embed) is PatchEmbed
    attention = getattr(vit.blocks[-1], "attn", None) if plain else None
    if not hasattr(attention, "qkv") or vit.cls_token is None:
        raise refusal
    rope: Any = getattr(vit, "rope", None)
    if rope is not None:
        rope.aug_active = False  # timm's augmentation is not keyed by the sample, as ours is
    return vit


def initialize_as_mae(backbone: Backbone) -> None:
    """MAE's initial weights: Xavier initialization, and fixed position embeddings."""
    vit = backbone.vit
    initialize_linear_layers(vit)
    projection = vit.patch_embed.proj.weight
    nn.init.xavier_uniform_(projection.view(len(projection), -1))
    if vit.cls_token is not None:
        nn.init.normal_(vit.cls_token, std=0.02)
    if vit.pos_embed is not None:
        grid = vit.patch_embed.grid_size[0]
        vit.pos_embed.data.zero_()
        vit.pos_embed.data[0, -(grid**2) :] = sincos_positions(grid, backbone.width)
        vit.pos_embed.requires_grad_(False)


def initialize_linear_layers(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def sincos_positions(grid: int, width: int) -> Float[Tensor, "N {width}"]:
    """Fixed position embeddings, row by row: sines and cosines of x, then of y, a quarter each."""
    rates = 1 / 10_000 ** (torch.arange(width // 4).double() / (width // 4))
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    waves = [wave(c.flatten()[:, None] * rates) for c in (x, y) for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, dim=1).float()
