"""Images in, feature map out: what evaluations ask of a backbone, and where one comes from."""

import difflib
import hashlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import timm
import torch
from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.backbone import Backbone
from croc.checkpoint import checkpoints, load_checkpoint
from croc.errors import UserError
from croc.run_folder import PAGE, read_config


@runtime_checkable
class DenseBackbone(Protocol):
    """A frozen network that gives a feature to every patch of an image."""

    name: str
    stride_px: int

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """Features of normalised images; a ViT concatenates its last `blocks` blocks."""
        ...


class VitBackbone(nn.Module):
    """The patch tokens of a ViT's last blocks, the final norm applied to each."""

    def __init__(self, vit: VisionTransformer, name: str) -> None:
        super().__init__()
        self.vit = vit.eval().requires_grad_(False)
        self.name = name
        self.stride_px: int = vit.patch_embed.patch_size[0]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        if blocks > len(self.vit.blocks):
            raise UserError(f"{self.name} has {len(self.vit.blocks)} blocks, not {blocks}")
        found: Any = self.vit.forward_intermediates(
            images, indices=blocks, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return torch.cat(found, dim=1)


class ConvBackbone(nn.Module):
    """The last stage of a ConvNet, dilated to an output stride of 16."""

    def __init__(self, network: Any, name: str) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.name = name
        self.stride_px: int = network.feature_info.reduction()[-1]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """`blocks` is a ViT's affair: a ConvNet gives its last stage."""
        return self.network(images)[-1]


def open_backbone(spec: str, image_px: int = 448, seed: int = 0) -> VitBackbone | ConvBackbone:
    """A run's folder or checkpoint (its teacher), timm:NAME, or random:NAME for untrained ones."""
    kind, _, name = spec.partition(":")
    if kind in ("timm", "random") and name:
        return _from_timm(name, image_px, pretrained=kind == "timm", seed=seed)
    path = Path(spec)
    if path.is_dir():
        found = checkpoints(path)
        if not (path / PAGE).is_file() or not found:
            raise UserError(
                f"{spec} holds no run with a checkpoint: give a folder of croc pretrain"
            )
        return _from_run(path, found[-1])
    if path.is_file():
        if not (path.parent.parent / PAGE).is_file():
            raise UserError(f"{spec} lies in no run's folder, whose {PAGE} tells the architecture")
        return _from_run(path.parent.parent, path)
    raise UserError(
        f"--weights {spec}: no such run or file; a run's folder, timm:NAME or random:NAME will do"
    )


def _from_run(run: Path, checkpoint: Path) -> VitBackbone:
    """The teacher's backbone: it is what is evaluated, its head is left behind."""
    config, _ = read_config(run / PAGE)
    state = load_checkpoint(checkpoint)
    backbone = Backbone(config.model, config.views.size_px)
    weights = {
        name.removeprefix("backbone."): value
        for name, value in state["modules"]["teacher"].items()
        if name.startswith("backbone.")
    }
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"{checkpoint} does not fit {run / PAGE}: {reason}") from None
    return VitBackbone(backbone.vit, f"{run.name}@{state['step']}")


def _from_timm(name: str, image_px: int, pretrained: bool, seed: int) -> VitBackbone | ConvBackbone:
    bare = name.partition(".")[0]
    if bare not in timm.list_models():
        near = ", ".join(difflib.get_close_matches(bare, timm.list_models(), n=3))
        raise UserError(f"--weights: timm has no model {name!r}; near to it: {near or 'none'}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return _create(name, image_px, pretrained)
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"timm's weights of {name} cannot be had here: {reason}") from None


def _create(name: str, image_px: int, pretrained: bool) -> VitBackbone | ConvBackbone:
    if "vit" in name or "deit" in name:
        vit: Any = timm.create_model(
            name, pretrained=pretrained, num_classes=0, img_size=image_px, dynamic_img_size=True
        )
        if isinstance(vit, VisionTransformer):
            return VitBackbone(vit, name)
    try:
        network = timm.create_model(
            name, pretrained=pretrained, features_only=True, output_stride=16
        )
    except (RuntimeError, TypeError, NotImplementedError, AttributeError):
        raise UserError(f"--weights: {name} gives no feature map; try a ViT or a ResNet") from None
    return ConvBackbone(network, name)


def fingerprint(backbone: nn.Module) -> str:
    """A hash of the weights and their names, to tell results of different weights apart."""
    digest = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
