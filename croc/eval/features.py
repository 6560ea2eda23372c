"""Images in, feature map out: what evaluations ask of a backbone, and where one comes from."""

import difflib
import hashlib
import logging
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import timm
import torch
from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.errors import UserError
from croc.train.run_folder import PAGE, read_config
from croc.weights.build import build_network
from croc.weights.files import printable, read_named_tensors, read_weights
from croc.weights.layouts import recognise
from croc.weights.page import read_page
from croc.weights.runs import find_checkpoint, open_run, untrained
from croc.weights.shipped import build_exported, find_weights, say_shipped

WEIGHTS, INIT = "--weights", "--init"


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

    def __init__(self, vit: VisionTransformer, name: str, origin: str = "") -> None:
        super().__init__()
        if isinstance(vit.norm, nn.Identity):  # a ViT made for pooled tokens norms them later
            vit.norm, vit.fc_norm = vit.fc_norm, vit.norm
        self.vit = vit.eval().requires_grad_(False)
        self.name, self.origin = name, origin or name
        self.stride_px: int = vit.patch_embed.patch_size[0]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        check_fit(self, images.shape[2], blocks)
        check_fit(self, images.shape[3], blocks)
        images = images.to(self.vit.patch_embed.proj.weight.dtype)
        found: Any = self.vit.forward_intermediates(
            images, indices=blocks, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return torch.cat(found, dim=1)


class ConvBackbone(nn.Module):
    """The last stage of a ConvNet, dilated to an output stride of 16."""

    def __init__(self, network: Any, name: str, origin: str = "") -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.name, self.origin = name, origin or name
        self.stride_px: int = network.feature_info.reduction()[-1]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """`blocks` is a ViT's affair: a ConvNet gives its last stage."""
        return self.network(images.to(next(self.network.parameters()).dtype))[-1]


def check_fit(backbone: DenseBackbone, side_px: int, blocks: int = 1, flag: str = "images") -> None:
    """Whether a side of an image is whole patches, and whether the backbone has so many blocks."""
    stride = backbone.stride_px
    if side_px % stride and not isinstance(backbone, ConvBackbone):
        below = side_px // stride * stride
        fitting = f"{below} or {below + stride}" if below else str(stride)
        raise UserError(
            f"{flag} of {side_px} px do not consist of {backbone.name}'s patches of {stride} px: "
            f"{fitting} px would"
        )
    if isinstance(backbone, VitBackbone) and blocks > len(backbone.vit.blocks):
        depth = len(backbone.vit.blocks)
        raise UserError(f"{backbone.name} has {depth} blocks, not {blocks}: pass {depth} or fewer")


def open_backbone(
    spec: str, image_px: int = 448, seed: int = 0, flag: str = WEIGHTS
) -> VitBackbone | ConvBackbone:
    """Shipped weights, a run's folder or checkpoint (its teacher), a file of a known layout, or a
    timm model.

    timm:NAME has timm's own weights, timm:NAME@FILE those of a file in timm's layout, random:NAME
    none yet; random:RUN is a run's network before its first step. `flag` is what messages name.
    """
    if not spec.strip():
        raise UserError(f"{flag} names nothing; {_sources(flag)} will do")
    kind, _, name = spec.partition(":")
    if kind == "random" and (Path(name) / PAGE).is_file():
        config, _ = read_config(Path(name) / PAGE)
        return VitBackbone(untrained(config).vit, f"{Path(name).name}@0")
    if kind in ("timm", "random") and name:
        name, _, file = name.partition("@")
        if file and kind == "random":
            raise UserError(f"{flag} random:{name} takes no file; timm:{name}@{file} does")
        weights = read_weights(Path(file)) if file else None
        return _from_timm(name, image_px, kind == "timm", weights, seed, flag)
    path = find_weights(spec)
    if not path.exists():
        raise UserError(
            f"{flag} {spec}: no such run or file; {_sources(flag)} will do ({say_shipped()})"
        )
    found = find_checkpoint(path)
    return open_file(path, image_px) if found is None else _from_run(*found)


def load_backbone(what: str) -> VitBackbone | ConvBackbone:
    """A backbone by the name of shipped weights, or by all that --weights takes.

    In float32 and frozen; `features(images)` gives "B C rows columns" for images that are
    normalised by ImageNet's mean and deviation.
    """
    return open_backbone(what, flag="load_backbone").float().eval()


def _sources(flag: str) -> str:
    untrained = ", random:NAME" if flag != INIT else ""  # no run starts from no weights
    return f"a run's folder, a file of weights, timm:NAME{untrained} or timm:NAME@FILE"


def open_file(path: Path, image_px: int) -> VitBackbone | ConvBackbone:
    """What `croc export` wrote, or a published file, whose layout is recognised by keys and shapes
    (docs/weights.md)."""
    page = read_page(path)
    if page is not None:
        said = f"{path.stem}, {page.recipe}, {page.images_seen:,} images seen"
        return VitBackbone(build_exported(path, page).vit, path.stem, printable(said))
    found = recognise(read_named_tensors(path), str(path))
    network: Any = build_network(found, image_px, str(path))
    kind = VitBackbone if found.is_vit else ConvBackbone
    return kind(network, path.stem, f"{path.name} ({found.layout})")


def _from_run(run: Path, checkpoint: Path) -> VitBackbone:
    opened = open_run(run, checkpoint)
    return VitBackbone(opened.backbone.vit, opened.name, f"{opened.name}, the {opened.network}")


def _from_timm(
    name: str,
    image_px: int,
    pretrained: bool,
    weights: dict[str, Tensor] | None,
    seed: int,
    flag: str,
) -> VitBackbone | ConvBackbone:
    bare = name.partition(".")[0]
    if bare not in timm.list_models():
        near = ", ".join(difflib.get_close_matches(bare, timm.list_models(), n=3))
        raise UserError(f"{flag}: timm has no model {name!r}; near to it: {near or 'none'}")
    options: dict[str, Any] = {"pretrained": pretrained}
    if weights is not None:
        # timm resamples the position embedding and drops nothing but its own classifier's names.
        options["pretrained_cfg_overlay"] = {"state_dict": weights}
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            backbone = _create(name, image_px, options, flag)
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"timm's weights of {name} cannot be had here ({reason}): timm:{name}@FILE takes "
                "them from a file"
            ) from None
    if weights is not None:
        _all_loaded(backbone, weights, flag)
    return backbone


def _create(
    name: str, image_px: int, options: dict[str, Any], flag: str
) -> VitBackbone | ConvBackbone:
    try:
        if "vit" in name or "deit" in name:
            vit: Any = timm.create_model(
                name, num_classes=0, img_size=image_px, dynamic_img_size=True, **options
            )
            if isinstance(vit, VisionTransformer):
                return VitBackbone(vit, name)
        network = timm.create_model(name, features_only=True, output_stride=16, **options)
        backbone = ConvBackbone(network, name)
        backbone.features(torch.zeros(1, 3, 64, 96))  # of any size?
        return backbone
    except (
        *(RuntimeError, TypeError, NotImplementedError, AttributeError, KeyError),
        *(AssertionError, ValueError, IndexError),
    ) as error:
        if "pretrained_cfg_overlay" in options:
            raise UserError(f"{flag}: the file does not fit {name}: {_last_line(error)}") from None
        if "Invalid pretrained tag" in str(error):
            raise UserError(f"{flag}: timm has no weights {name!r} of this model") from None
        raise UserError(
            f"{flag}: {name} gives no feature map of any size; try a plain ViT or a ResNet"
        ) from None


def _all_loaded(
    backbone: VitBackbone | ConvBackbone, weights: dict[str, Tensor], flag: str
) -> None:
    """timm passes over what a file lacks; features of half a network would be worth nothing."""
    network = backbone.vit if isinstance(backbone, VitBackbone) else backbone.network
    known = {name.replace(".", "_") for name in weights}  # its feature networks rename a.0 to a_0
    missing = [name for name in network.state_dict() if name.replace(".", "_") not in known]
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing:
        raise UserError(
            f"{flag}: the file lacks {len(missing)} of {backbone.name}'s tensors "
            f"({', '.join(missing[:3])} …); it has {', '.join(list(weights)[:3])} …"
        )


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def fingerprint(backbone: nn.Module) -> str:
    """A hash of the weights and their names, to tell results of different weights apart."""
    digest = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
