"""Opening a backbone by a name or path: bundled weights, a run, a file from anywhere, timm's."""

import difflib
import logging
import math
import os
import site
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from croc.config import CONFIG_FILE, read_config
from croc.errors import UserError
from croc.method.backbone import Vit
from croc.tables import one_line
from croc.weights import hub
from croc.weights.backbones import (
    COLORS,
    ColorBackbone,
    ConvBackbone,
    FrozenBackbone,
    VitBackbone,
)
from croc.weights.checkpoint import checkpoints, find_checkpoint, open_run, untrained
from croc.weights.checksum import save_sealed, verify
from croc.weights.files import (
    describe_misfit,
    first_line,
    read_arguments,
    read_named_tensors,
)
from croc.weights.layouts import PATCHES, choose_network, recognize
from croc.weights.record import (
    Record,
    RunRecord,
    TimmModel,
    build,
    build_recorded,
    metadata,
    read_record,
    timm_vit,
)

FOLDER_VARIABLE = "CROC_WEIGHTS"
"""The environment variable with a folder of weights that can be opened by name."""


def open_backbone(spec: str, seed: int = 0, flag: str = "--weights") -> FrozenBackbone:
    """Bundled weights, a run's folder or checkpoint (its teacher), a file of a known layout, or a
    timm model.

    hf:USER/NAME, hf:USER/NAME@REVISION and hf:USER/NAME/FILE are files on the Hugging Face hub.
    timm:NAME has timm's own weights, timm:NAME@FILE those of a file in timm's layout, random:NAME
    is untrained; random:RUN is a run's network before its first step; `colors` is no network but
    the patches' colors and textures. Error messages name `flag`.
    """
    if spec == COLORS:
        return ColorBackbone()
    kind, _, name = spec.partition(":")
    run = expand(name)
    if kind == "random" and (run / CONFIG_FILE).is_file():
        config, _ = read_config(run / CONFIG_FILE)
        vit = untrained(config).vit
        patch_px, depth = vit.patch_embed.patch_size[0], len(vit.blocks)
        record = timm_vit(config.model.name, patch_px, depth, config.views.size_px)
        return VitBackbone(vit, f"{run.name}@0", record=record)
    if kind in ("timm", "random") and name:
        return _open_timm(kind, name, seed, flag)
    path = find_weights(spec)
    if not spec.strip() or not path.exists():
        raise UserError(
            f"{flag} {spec}: no such run or file; pass a run's folder, a file of weights, "
            f"hf:USER/NAME, timm:NAME, timm:NAME@FILE or random:NAME ({bundled_hint()})"
        )
    checkpoint = find_checkpoint(path)
    if checkpoint is None:
        return _open_file(path, spec)
    backbone, _, record = open_run(*checkpoint)
    name = f"{checkpoint[0].absolute().name}@{record.step}"
    return VitBackbone(backbone.vit, name, f"{name}, the {record.network}", record)


def _open_file(path: Path, spec: str) -> FrozenBackbone:
    """A file with a record of ours, or one that is recognized by its keys and shapes."""
    stem = path.parent.name if expand(spec).is_dir() else path.stem
    name, record = hub.name_of(spec) or stem, read_record(path)
    if isinstance(record, RunRecord):
        origin = f"{name}, {record.recipe}, {record.images_seen:,} images seen"
        return VitBackbone(build_recorded(path, record).vit, name, one_line(origin), record)
    weights, origin = read_named_tensors(path), ""
    if record is None:
        recognized = recognize(weights, str(path))
        record = TimmModel(recognized.architecture, recognized.arguments)
        weights = recognized.weights
        origin = f"{path.name if name == path.stem else spec} ({recognized.layout})"
    return _freeze(build(record.build, weights, str(path)), name, origin, record)


def _freeze(network: Any, name: str, origin: str, record: Record) -> FrozenBackbone:
    kind = VitBackbone if isinstance(network, Vit) else ConvBackbone
    return kind(network, name, origin, record)


def _open_timm(kind: str, name: str, seed: int, flag: str) -> FrozenBackbone:
    """timm:NAME, timm:NAME@FILE or random:NAME."""
    name, _, file = name.partition("@") if kind == "timm" else (name, "", "")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name.partition(".")[0], timm.list_models(), n=3)
        near = ", ".join(close) or "another"
        raise UserError(f"{flag}: timm has no model {name!r}; did you mean {near}?")
    is_vit = timm.models.is_model_in_modules(name, ("vision_transformer", "deit", "eva"))
    options: dict[str, Any] = {"features_only": True, "output_stride": 16}
    if is_vit:
        options = {"num_classes": 0, "dynamic_img_size": True}
    cfg: Any = timm.get_pretrained_cfg(name)
    source: dict[str, Any] = {}
    if file:  # without classifiers on both sides, timm loads strictly
        weights = _read_timm(expand(file), cfg)
        if is_vit and {PATCHES, "pos_embed"} <= weights.keys():  # the file's grid, not the name's
            rows = math.isqrt(weights["pos_embed"].shape[1])
            options["img_size"] = rows * weights[PATCHES].shape[-1]
        overlay = {"state_dict": weights, "classifier": None, "num_classes": 0}
        source["pretrained_cfg_overlay"] = overlay
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: Any = timm.create_model(name, pretrained=kind == "timm", **options, **source)
        if not is_vit:
            network.eval()(torch.zeros(1, 3, 64, 96))  # some networks take only one size
    except OSError as error:
        raise UserError(
            f"timm's weights of {name} cannot be downloaded here ({first_line(error)}): "
            f"timm:{name}@FILE takes them from a file"
        ) from None
    except Exception as error:  # whatever timm raises for a file or model that does not fit
        problem = f"the file does not fit {name}" if file else f"{name} gives no feature map"
        raise UserError(f"{flag}: {problem}: {describe_misfit(error)}") from None
    # An untrained network expects nothing; own weights, and files alone, are taken as ImageNet's.
    own = {} if kind == "random" else {"mean": list(cfg.mean), "std": list(cfg.std)}
    return _freeze(network, name, "", TimmModel(name, options, **own))


def _read_timm(path: Path, cfg: Any) -> dict[str, Tensor]:
    """A file's tensors, without classifiers and the names of the dicts around the network."""
    tensors = read_named_tensors(path)
    first, classifiers = (
        (names,) if isinstance(names, str) else names or ()
        for names in (cfg.first_conv, cfg.classifier)
    )
    weights, *_ = choose_network(tensors, [f"{name}.weight" for name in first], str(path))
    heads = tuple(f"{name}." for name in classifiers)
    return {name: x for name, x in weights.items() if not name.startswith(heads)}


def find_weights(spec: str) -> Path:
    """A path, or the weights in an exported folder; if nothing is there, bundled weights of that
    name; hf:USER/NAME is downloaded."""
    if spec.startswith(hub.PREFIX):
        return hub.download(spec)
    path = expand(spec)
    exported = path / hub.MODEL
    if exported.is_file() and not (path / "checkpoints").exists():
        return exported
    return path if path.exists() else bundled_weights().get(spec, path)


def expand(path: str) -> Path:
    """With the home folder instead of ~, also behind LABEL=, where shells leave it."""
    return Path(os.path.expanduser(path))


def bundled_weights() -> dict[str, Path]:
    """Files by name; the first folder that has a name wins."""
    paths = [path for folder in bundled_folders() for path in sorted(folder.glob("*.safetensors"))]
    return {path.stem: path for path in reversed(paths)}


def bundled_folders() -> list[Path]:
    """$CROC_WEIGHTS, `weights/` of a checkout, and share/croc/weights of the environment, of the
    user and beside the package (`pip install --target`)."""
    root = Path(__file__).parents[2]
    chosen = os.environ.get(FOLDER_VARIABLE)
    return [
        *([Path(chosen).expanduser()] if chosen else []),
        *([root / "weights"] if (root / "pyproject.toml").is_file() else []),
        *(Path(base) / "share/croc/weights" for base in (sys.prefix, site.getuserbase(), root)),
    ]


def bundled_hint() -> str:
    """For error messages."""
    return f"bundled weights: {', '.join(sorted(bundled_weights())) or 'none here'}"


def check_storable(backbone: FrozenBackbone) -> Record:
    if backbone.record is None:
        raise UserError(f"{backbone.name} cannot be stored with a head: pass a network's weights")
    return backbone.record


def save_backbone(backbone: FrozenBackbone, path: Path) -> None:
    """One sealed file that `open_backbone` reopens; in bfloat16 if that loses nothing."""
    record = check_storable(backbone)
    network: Any = backbone.vit if isinstance(backbone, VitBackbone) else backbone.network
    weights = {name: x.detach().cpu().contiguous() for name, x in network.state_dict().items()}
    short = {name: x.bfloat16() if x.dtype == torch.float32 else x for name, x in weights.items()}
    is_exact = all(torch.equal(short[name].to(x.dtype), x) for name, x in weights.items())
    save_sealed(short if is_exact else weights, path, metadata(record))


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
        **asdict(backbone.record),
        "checksum": "matches" if verify(path) else "none in the file",
        **({} if isinstance(backbone.record, RunRecord) else read_arguments(path)),
    }
    return [f"{name}: {one_line(str(value))}" for name, value in lines.items()]
