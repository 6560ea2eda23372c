"""The networks that learn."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from croc.config.checks import require, require_least


@dataclass(frozen=True)
class ModelConfig:
    """The backbone: any timm ViT."""

    name: str = "vit_small_patch16_224"
    """timm's name of the architecture; no weights are downloaded."""
    patch_px: int | None = None
    """Patch side, if not the named model's own."""
    depth: int | None = None
    """Number of blocks, if not the named model's own."""
    drop_path: float = 0.1
    """Stochastic depth of the student, rising linearly to this in the last block."""
    position_window: tuple[float, float] = (1.0, 1.0)
    """While training, a view has the positions of a random window of the grid, with sides of least
    and most these shares of the grid's, so that a token cannot tell where in its view it lies;
    1 1 is the whole grid, as in the paper."""
    init: Annotated[str | None, tyro.conf.arg(prefix_name=False)] = None
    """Weights that the backbone starts from: a run, timm:NAME or a file; by default random ones."""

    def __post_init__(self) -> None:
        require(0 <= self.drop_path < 1, f"--model.drop-path must be in 0 … 1: {self.drop_path}")
        require_least(self, "model", 1, "depth", "patch_px")
        require(
            0 < self.position_window[0] <= self.position_window[1] <= 1,
            f"--model.position-window must rise within 0 … 1: {self.position_window}",
        )
        require(self.init != "", "--init is empty: name weights, or leave it out")


@dataclass(frozen=True)
class ImageHeadConfig:
    """The projection head: a trunk, and an output for images."""

    layers: int = 3
    """Linear layers of the trunk, the bottleneck included."""
    hidden: int = 2048
    """Width of the trunk."""
    bottleneck: int = 256
    """Width before the prototypes."""
    image_prototypes: int = 65_536
    """Outputs for images."""
    unit_prototypes: bool = False
    """Keep the prototypes at unit length (DINO's norm_last_layer)."""

    def __post_init__(self) -> None:
        require_least(self, "head", 1, "layers", "hidden", "bottleneck")
        require_least(self, "head", 2, "image_prototypes")


@dataclass(frozen=True)
class HeadConfig(ImageHeadConfig):
    """The projection head: one trunk, an output for images and one for clusters."""

    cluster_prototypes: int = 8_192
    """Outputs for clusters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, "head", 2, "cluster_prototypes")


@dataclass(frozen=True)
class DecoderConfig:
    """MAE's masks, and the decoder that fills them in."""

    mask: float = 0.75
    """Share of the patches that the encoder does not see."""
    width: int = 512
    """Width of the decoder."""
    depth: int = 8
    """Blocks of the decoder."""
    heads: int = 16
    """Attention heads of the decoder."""
    normalise_patches: bool = True
    """Whether each patch to be filled in is first brought to mean 0 and deviation 1."""

    def __post_init__(self) -> None:
        require(0 < self.mask < 1, f"--decoder.mask must lie between 0 and 1: {self.mask}")
        require_least(self, "decoder", 1, "width", "depth", "heads")
        require(
            self.width % (4 * self.heads) == 0,
            f"--decoder.width {self.width} must be a multiple of 4 × --decoder.heads {self.heads}",
        )
