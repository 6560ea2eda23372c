"""MAE: most patches of one view are hidden, and the network reconstructs them from the others."""

from functools import partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from croc.config import DecoderConfig, MaeConfig, require
from croc.fabric import Fabric, FabricModule
from croc.kernels.layers import replace_layers
from croc.method.backbone import (
    WHOLE_GRID,
    Backbone,
    initialize_as_mae,
    initialize_linear_layers,
    sincos_positions,
)
from croc.method.distributed import process_count, skip_gradient_sync
from croc.method.profiling import profile_range
from croc.method.randomness import uniform
from croc.method.types import Canvases, ScheduleState, autocast_dtype
from croc.method.views import make_views


class Decoder(nn.Module):
    """Narrow blocks over all patches, where the hidden ones start as a learned mask token."""

    def __init__(self, width: int, grid: int, patch_px: int, config: DecoderConfig) -> None:
        super().__init__()
        self.embed = nn.Linear(width, config.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.width))
        positions = sincos_positions(grid, config.width)
        self.register_buffer("positions", positions, persistent=False)
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(
            *(
                Block(config.width, config.heads, qkv_bias=True, norm_layer=norm)
                for _ in range(config.depth)
            )
        )
        self.norm = norm(config.width)
        self.paint = nn.Linear(config.width, 3 * patch_px**2)
        initialize_linear_layers(self)
        nn.init.normal_(self.mask_token, std=0.02)
        replace_layers(self)

    positions: Tensor

    def forward(
        self,
        cls: Float[Tensor, "B D"],
        patches: Float[Tensor, "B V D"],
        visible: Int64[Tensor, "B V"],
    ) -> Float[Tensor, "B N pixels"]:
        cls, patches = self.embed(cls)[:, None], self.embed(patches)
        x = self.mask_token.to(patches.dtype).expand(len(patches), len(self.positions), -1)
        x = x.scatter(1, visible[..., None].expand_as(patches), patches) + self.positions
        x = torch.cat([cls, x.to(cls.dtype)], dim=1)
        return self.paint(self.norm(self.blocks(x)))[:, 1:]


class MaeNetwork(nn.Module):
    """The backbone as the encoder, and the decoder, which is not used after training."""

    def __init__(self, config: MaeConfig) -> None:
        super().__init__()
        self.config = config.decoder
        self.backbone = Backbone(config.model, config.views.size_px, config.model.drop_path)
        initialize_as_mae(self.backbone)
        patch_px, grid = self.backbone.patch_px, config.views.size_px // self.backbone.patch_px
        self.decoder = Decoder(self.backbone.width, grid, patch_px, config.decoder)
        self.patches = grid**2
        visible = count_visible(self.patches, config.decoder.mask_ratio)
        require(
            0 < visible < self.patches,
            f"--decoder.mask-ratio {config.decoder.mask_ratio} leaves {visible} of {self.patches} "
            "patches visible",
        )
        self.reconstruction_error = reconstruction_error

    def forward(
        self, pixels: Float[Tensor, "B 3 h w"], sample_keys: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The mean reconstruction error of each image's hidden patches."""
        visible, hidden = draw_mask(sample_keys, self.patches, self.config.mask_ratio)
        with profile_range("student"):
            cls, patches = self.backbone.encode(pixels, visible, sample_keys)
        with profile_range("decoder"):
            painted = self.decoder(cls, patches, visible)
        with profile_range("loss"):
            target = into_patches(pixels, self.backbone.patch_px)
            return self.reconstruction_error(painted, target, hidden, self.config.normalize_patches)


class Mae:
    """MAE's network, and one training step; the interface is that of `Croc`."""

    def __init__(self, config: MaeConfig, device: torch.device) -> None:
        require(config.views.early_px is None, "--views.early-px is not for MAE")
        fixed = config.model.position_window == WHOLE_GRID
        require(fixed, "--model.position-window is not for MAE, whose positions are fixed")
        self.config, self.views_config = config, config.views
        self.student = MaeNetwork(config)
        self.micro_batch_size = config.run.micro_batch or (16 if device.type == "cpu" else None)
        self.make_views = make_views

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"student": self.student}

    @property
    def backbones(self) -> list[Backbone]:
        return [self.student.backbone]

    def set_schedule(self, schedule: ScheduleState) -> None:
        """The loss has no schedule."""

    def compute_gradients(
        self, fabric: Fabric, student: FabricModule, canvases: Canvases
    ) -> dict[str, Tensor]:
        images = len(canvases.sample_keys) * process_count()
        micro_batches = list(canvases.split(self.micro_batch_size))
        total = torch.zeros((), device=fabric.device)
        for index, micro_batch in enumerate(micro_batches):
            with profile_range("views"), fabric.autocast(), torch.no_grad():
                dtype = autocast_dtype(fabric.device, torch.float32)
                patch_px = self.student.backbone.patch_px
                views = self.make_views(micro_batch, self.views_config, patch_px, dtype, 1)
            with skip_gradient_sync(fabric, student, is_last=index + 1 == len(micro_batches)):
                loss = student(views.pixels[0], micro_batch.sample_keys).sum() / images
                with profile_range("backward"):
                    # DDP takes the mean over processes, but the shares must be summed.
                    fabric.backward(loss * process_count())
            total = total + loss.detach()
        return {"loss": total}

    def freeze_prototypes(self, schedule: ScheduleState) -> None:
        """MAE has no prototypes."""

    def update_teacher(self, schedule: ScheduleState) -> None:
        """MAE has no teacher."""


def draw_mask(
    keys: Int64[Tensor, "B"], patches: int, share: float
) -> tuple[Int64[Tensor, "B V"], Bool[Tensor, "B {patches}"]]:
    """Which patches of each image are visible, in a random order, and which are hidden."""
    order = uniform(keys, "mask", patches).argsort(dim=1)
    visible = order[:, : count_visible(patches, share)]
    everything = torch.ones(len(keys), patches, dtype=torch.bool, device=keys.device)
    return visible, everything.scatter(1, visible, False)


def count_visible(patches: int, hidden: float) -> int:
    return int(patches * (1 - hidden))


def into_patches(pixels: Float[Tensor, "B 3 h w"], patch_px: int) -> Float[Tensor, "B N pixels"]:
    return rearrange(pixels, "b c (y p) (x q) -> b (y x) (p q c)", p=patch_px, q=patch_px)


def reconstruction_error(
    painted: Float[Tensor, "B N pixels"],
    target: Float[Tensor, "B N pixels"],
    hidden: Bool[Tensor, "B N"],
    normalize: bool,
) -> Float[Tensor, "B"]:
    """Mean squared error of an image's hidden patches."""
    painted, target = painted.float(), target.float()
    if normalize:
        mean, variance = target.mean(dim=-1, keepdim=True), target.var(dim=-1, keepdim=True)
        target = (target - mean) / (variance + 1e-6).sqrt()
    errors = (painted - target).square().mean(dim=-1)
    return (errors * hidden).sum(dim=1) / hidden.sum(dim=1)
