"""Opening a backbone by a name or path: bundled weights, a run, a file from anywhere, timm's."""

import contextlib
import difflib
import hashlib
import logging
import os
import site
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn

from croc.config import CONFIG_FILE, ModelConfig, PretrainConfig, read_config
from croc.errors import UserError
from croc.method.backbone import Backbone, Vit
from croc.tables import one_line
from croc.weights import hub
from croc.weights.checkpoint import checkpoints, find_checkpoint, open_run, untrained
from croc.weights.checksum import save_sealed, verify
from croc.weights.colors import color_features
from croc.weights.files import first_line, read_arguments, read_named_tensors
from croc.weights.layouts import COUNTERS, fill, recognize
from croc.weights.record import (
    Blueprint,
    Record,
    WeightsRecord,
    build,
    build_recorded,
    metadata,
    norm_patches,
    read_record,
    vit_blueprint,
)

WEIGHTS, INIT = "--weights", "--init"
SHIPPED = "CROC_WEIGHTS"
"""The environment variable with a folder of weights."""
COLORS = "colors"
WRAPPERS = ("state_dict.", "model.", "teacher.")
NETWORK = {"model.name", "model.patch-px", "model.depth"}
"""Options that describe the network."""
Config = TypeVar("Config", bound=PretrainConfig)
Made = Record | None
"""What a network can be built from again."""
VIT_SIZES = {(192, 12): "Ti", (384, 12): "S", (768, 12): "B", (1024, 24): "L", (1280, 32): "H"}
"""Width and number of blocks, as the ViT papers name them."""


@runtime_checkable
class DenseBackbone(Protocol):
    """A frozen network that gives a feature to every patch of an image."""

    name: str
    stride_px: int

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """Features of normalized images; a ViT concatenates its last `blocks` blocks."""
        ...


class VitBackbone(nn.Module):
    """The patch tokens of a ViT's last blocks, the final norm applied to each."""

    def __init__(self, vit: Vit, name: str, origin: str = "", made: Made = None) -> None:
        super().__init__()
        norm_patches(vit)
        self.vit: Any = vit.eval().requires_grad_(False)
        self.name, self.origin, self.made = name, origin or name, made
        self.stride_px: int = self.vit.patch_embed.patch_size[0]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        for side_px in images.shape[2:]:
            check_fit(self, side_px, blocks)
        images = images.to(self.vit.patch_embed.proj.weight.dtype)
        features: Any = self.vit.forward_intermediates(
            images, indices=blocks, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        return torch.cat(features, dim=1)


class ConvBackbone(nn.Module):
    """The last stage of a ConvNet, dilated to an output stride of 16."""

    def __init__(self, network: Any, name: str, origin: str = "", made: Made = None) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.name, self.origin, self.made = name, origin or name, made
        self.stride_px: int = network.feature_info.reduction()[-1]

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        """`blocks` is for ViTs only: a ConvNet gives its last stage."""
        return self.network(images.to(next(self.network.parameters()).dtype))[-1]


class ColorBackbone(ConvBackbone):
    """No network: colors and textures of patches of 16 px."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.name = self.origin = COLORS
        self.stride_px, self.made = 16, None

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        return color_features(images, self.stride_px)


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
    if isinstance(backbone, VitBackbone) and blocks > (depth := len(backbone.vit.blocks)):
        raise UserError(f"{backbone.name} has {depth} blocks, not {blocks}: pass {depth} or fewer")


def open_backbone(
    spec: str, image_px: int = 448, seed: int = 0, flag: str = WEIGHTS
) -> VitBackbone | ConvBackbone:
    """Bundled weights, a run's folder or checkpoint (its teacher), a file of a known layout, or a
    timm model.

    hf:USER/NAME, hf:USER/NAME@REVISION and hf:USER/NAME/FILE are files on the Hugging Face hub.
    timm:NAME has timm's own weights, timm:NAME@FILE those of a file in timm's layout, random:NAME
    none yet; random:RUN is a run's network before its first step; `colors` is no network but the
    patches' colors and textures. Messages name `flag`.
    """
    if spec == COLORS:
        return ColorBackbone()
    kind, _, name = spec.partition(":")
    if kind == "random" and (Path(name) / CONFIG_FILE).is_file():
        config, _ = read_config(Path(name) / CONFIG_FILE)
        vit = untrained(config).vit
        sizes = vit.patch_embed.patch_size[0], len(vit.blocks), config.views.size_px
        made = vit_blueprint(config.model.name, *sizes)
        return VitBackbone(vit, f"{Path(name).name}@0", made=made)
    if kind in ("timm", "random") and name:
        return _open_timm(kind, name, image_px, seed, flag)
    path = find_weights(spec)
    if not spec.strip() or not path.exists():
        raise UserError(
            f"{flag} {spec}: no such run or file; pass a run's folder, a file of weights, "
            f"hf:USER/NAME, timm:NAME, timm:NAME@FILE or random:NAME ({shipped_hint()})"
        )
    checkpoint = find_checkpoint(path)
    if checkpoint is not None:
        backbone, _, record = open_run(*checkpoint)
        name = f"{checkpoint[0].absolute().name}@{record.step}"
        return VitBackbone(backbone.vit, name, f"{name}, the {record.network}", record)
    name, record = hub.name_of(spec) or path.stem, read_record(path)
    if isinstance(record, WeightsRecord):
        origin = f"{name}, {record.recipe}, {record.images_seen:,} images seen"
        return VitBackbone(build_recorded(path, record).vit, name, one_line(origin), record)
    weights, origin = read_named_tensors(path), ""
    if record is None:
        recognized = recognize(weights, str(path))
        record = Blueprint(recognized.architecture, recognized.arguments(image_px))
        weights = recognized.weights
        origin = f"{spec if name != path.stem else path.name} ({recognized.layout})"
    return _wrap(build(record.build, weights, str(path)), name, origin, record)


def _wrap(network: Any, name: str, origin: str = "", made: Made = None) -> Any:
    wrap = VitBackbone if isinstance(network, Vit) else ConvBackbone
    return wrap(network, name, origin, made)


def check_storable(backbone: VitBackbone | ConvBackbone) -> None:
    if backbone.made is None:
        raise UserError(f"{backbone.name} cannot be stored with a head: pass a network's weights")


def save_backbone(backbone: VitBackbone | ConvBackbone, path: Path) -> None:
    """One sealed file that `open_backbone` reopens; in bfloat16 if that loses nothing."""
    check_storable(backbone)
    assert backbone.made is not None
    network: nn.Module = backbone.vit if isinstance(backbone, VitBackbone) else backbone.network
    weights = {name: x.detach().cpu().contiguous() for name, x in network.state_dict().items()}
    short = {name: x.bfloat16() if x.dtype == torch.float32 else x for name, x in weights.items()}
    is_exact = all(torch.equal(short[name].to(x.dtype), x) for name, x in weights.items())
    save_sealed(short if is_exact else weights, path, metadata(backbone.made))


def load_backbone(weights: str) -> VitBackbone | ConvBackbone:
    """A backbone by the name of bundled weights, or by anything that --weights takes.

    In float32 and frozen; `features(images)` gives "B C rows columns" for images that are
    normalized by ImageNet's mean and deviation.
    """
    return open_backbone(weights, flag="load_backbone").float().eval()


def shipped_folders() -> list[Path]:
    """$CROC_WEIGHTS, `weights/` of a checkout, and share/croc/weights of the environment, of the
    user and beside the package (`pip install --target`)."""
    root = Path(__file__).parents[2]
    chosen = os.environ.get(SHIPPED)
    return [
        *([Path(chosen).expanduser()] if chosen else []),
        *([root / "weights"] if (root / "pyproject.toml").is_file() else []),
        *(Path(base) / "share/croc/weights" for base in (sys.prefix, site.getuserbase(), root)),
    ]


def shipped() -> dict[str, Path]:
    """Files by name; the first folder that has a name wins."""
    paths = [path for folder in shipped_folders() for path in sorted(folder.glob("*.safetensors"))]
    return {path.stem: path for path in reversed(paths)}


def find_weights(spec: str) -> Path:
    """A path as it is; if nothing is there, bundled weights of that name; hf:USER/NAME is
    downloaded."""
    if spec.startswith(hub.PREFIX):
        return hub.download(spec)
    path = Path(spec)
    return path if path.exists() else shipped().get(spec, path)


def shipped_hint() -> str:
    """For messages."""
    return f"bundled weights: {', '.join(sorted(shipped())) or 'none here'}"


def _open_timm(
    kind: str, name: str, image_px: int, seed: int, flag: str
) -> VitBackbone | ConvBackbone:
    name, _, file = name.partition("@") if kind == "timm" else (name, "", "")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name.partition(".")[0], timm.list_models(), n=3)
        near = ", ".join(close) or "another"
        raise UserError(f"{flag}: timm has no model {name!r}; did you mean {near}?")
    weights = read_named_tensors(Path(file)) if file else {}
    for wrapper in (*WRAPPERS, *WRAPPERS):  # one may be in another
        inner = {k.removeprefix(wrapper): x for k, x in weights.items() if k.startswith(wrapper)}
        weights = inner or weights
    own: dict[str, Any] = {"features_only": True, "output_stride": 16}
    is_vit = timm.models.is_model_in_modules(name, ("vision_transformer", "deit", "eva"))
    if is_vit:
        own = {"num_classes": 0, "img_size": image_px, "dynamic_img_size": True}
    # timm resamples the position embedding and drops nothing but its own classifier's names.
    source: dict[str, Any] = {"pretrained_cfg_overlay": {"state_dict": weights}} if file else {}
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: Any = timm.create_model(name, pretrained=kind == "timm", **own, **source)
        if not is_vit:
            network.eval()(torch.zeros(1, 3, 64, 96))  # some networks take only one size
    except OSError as error:
        raise UserError(
            f"timm's weights of {name} cannot be downloaded here ({first_line(error)}): "
            f"timm:{name}@FILE takes them from a file"
        ) from None
    except Exception as error:  # whatever timm raises for a file or model that does not fit
        problem = f"the file does not fit {name}" if file else f"{name} gives no feature map"
        reason = one_line(str(error).strip().splitlines()[-1])
        raise UserError(f"{flag}: {problem}: {reason}") from None
    if file:  # timm ignores what a file lacks, and its feature networks rename a.0 to a_0
        known = {key.replace(".", "_") for key in weights}
        missing = [key for key in network.state_dict() if key.replace(".", "_") not in known]
        missing = [key for key in missing if not key.endswith(COUNTERS)]
        if missing:
            raise UserError(
                f"{flag}: the file lacks {len(missing)} of {name}'s tensors "
                f"({', '.join(missing[:3])} …); it has {', '.join(list(weights)[:3])} …"
            )
    return _wrap(network, name, made=Blueprint(name, own))


def load_into(backbone: Backbone, spec: str) -> str:
    """Fill a backbone's ViT from a run, a checkpoint, timm:NAME, timm:NAME@FILE or a file (--init).

    Returns where the weights came from, for the log. Heads stay fresh; positions are resampled to
    the backbone's grid.
    """
    opened = _open_init(spec, backbone.vit.patch_embed.img_size[0])
    _copy(opened.vit, backbone.vit, f"--init {spec}")
    fresh = isinstance(opened.vit.norm, nn.Identity)
    return opened.origin + fresh * ", which has no final norm: that starts fresh"


def _copy(theirs: Any, ours: Any, source: str) -> None:
    """Refused unless both are of the same architecture; ours may have a final norm of its own, and
    its positions are resampled."""
    shapes, own = map(_shape, (theirs, ours))
    different = [f"{name} {shapes[name]}, not {x}" for name, x in own.items() if shapes[name] != x]
    if different:
        raise UserError(f"{source} does not fit --model.name: it has {', '.join(different)}")
    weights = theirs.state_dict()
    if isinstance(theirs.norm, nn.Identity):
        weights |= {f"norm.{name}": value for name, value in ours.norm.state_dict().items()}
    fill(ours, weights, source)


def _open_init(spec: str, image_px: int = 448) -> VitBackbone:
    if spec.startswith("random:") or spec == COLORS:
        raise UserError(f"--init {spec}: that has no weights to start from; leave --init out")
    opened = open_backbone(spec, image_px, flag=INIT)
    if not isinstance(opened, VitBackbone):
        raise UserError(f"--init {spec}: {opened.name} is a ConvNet, the backbone is a ViT")
    return opened


def follow_init(config: Config, recipe: str, passed: Collection[str]) -> Config:
    """The configuration with the network of --init, and views of whole patches, unless the user
    `passed` options of the network ("model.name", "model.patch-px" …) or of the views' size.

    A run that is resumed keeps the network that it has, even if --init is gone.
    """
    model, views = config.model, config.views
    if model.init is None or not NETWORK.isdisjoint(passed):
        return config
    config_file = Path(config.run.folder or f"runs/{recipe}") / CONFIG_FILE
    saved = read_config(config_file)[0] if config_file.is_file() else None
    if saved is not None and saved.model.init == model.init:
        model = replace(
            model, name=saved.model.name, patch_px=saved.model.patch_px, depth=saved.model.depth
        )
        sizes = {"size_px": saved.views.size_px, "early_px": saved.views.early_px}
    else:
        vit = _open_init(model.init).vit
        model, patch_px = _describe_network(vit, model), vit.patch_embed.patch_size[0]
        sizes = {
            name: px and max(1, round(px / patch_px)) * patch_px
            for name, px in (("size_px", views.size_px), ("early_px", views.early_px))
        }
    own = {
        name: px for name, px in sizes.items() if f"views.{name.replace('_', '-')}" not in passed
    }
    return replace(config, model=model, views=replace(views, **own))


def _describe_network(vit: Any, model: ModelConfig) -> ModelConfig:
    """`model` with the name, patch size and depth of a network, if that is all that it needs."""
    patch_px, name = vit.patch_embed.patch_size[0], vit.pretrained_cfg["architecture"]
    for option in (model, replace(model, name=name, patch_px=patch_px, depth=len(vit.blocks))):
        with contextlib.suppress(UserError), torch.device("meta"):
            _copy(vit, Backbone(option, 16 * patch_px).vit, "--init")
            return option
    return model


def _shape(vit: Any) -> dict[str, object]:
    return {
        "width": vit.embed_dim,
        "depth": len(vit.blocks),
        "heads": vit.blocks[0].get_submodule("attn").num_heads,
        "patches of": f"{vit.patch_embed.patch_size[0]} px",
        "registers": vit.num_prefix_tokens - (vit.cls_token is not None),
        "class token": vit.cls_token is not None,
        "a position for the class token": vit.pos_embed is not None and not vit.no_embed_class,
        "rotary positions": type(getattr(vit, "rope", None)).__name__,
        "family": type(vit).__name__,
    }


def describe_file(path: Path) -> list[str]:
    """The network, what is known about it, and its authors' training arguments, one line each."""
    path = find_weights(str(path))
    if not path.exists():
        raise UserError(f"{path} does not exist: pass a weights file or a run")
    backbone: Any = open_backbone(str(path), flag="FILE")
    path = checkpoints(path)[-1] if path.is_dir() else path
    lines = {
        "network": backbone.origin,
        "parameters": f"{sum(value.numel() for value in backbone.parameters()):,}",
        **asdict(backbone.made),
        "checksum": "matches" if verify(path) else "none in the file",
        **({} if isinstance(backbone.made, WeightsRecord) else read_arguments(path)),
    }
    return [f"{name}: {one_line(str(value))}" for name, value in lines.items()]


def fast_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor computes in it, some CPUs included."""
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type == "cuda" or native else torch.float32


def fingerprint(backbone: nn.Module) -> str:
    """A hash of the weights and their names, to tell results of different weights apart."""
    digest = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def architecture(backbone: VitBackbone | ConvBackbone) -> str:
    """ViT-S/16, or timm's name."""
    if isinstance(backbone, ConvBackbone):
        return backbone.name.partition(".")[0]
    width, depth, patch = backbone.vit.embed_dim, len(backbone.vit.blocks), backbone.stride_px
    size = VIT_SIZES.get((width, depth))
    return f"ViT-{size}/{patch}" if size else f"ViT/{patch}, {depth} blocks of {width}"
