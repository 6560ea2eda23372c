"""The layouts of timm, transformers, torch.hub and ONNX."""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from torch import Tensor, nn
from torch.export import Dim

from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.blueprint import Blueprint
from croc.weights.card import WeightsRecord, hub_license
from croc.weights.checksum import save_sealed
from croc.weights.open import ConvBackbone, VitBackbone
from croc.weights.transformers import convert

Weights = dict[str, Tensor]
OPSET = 18
"""The first whose Resize has antialiasing: the lower, the more runtimes know it."""


def write_timm(folder: Path, record: WeightsRecord, weights: Weights) -> None:
    """As timm's own on model hubs; by its metadata the file is one of croc's as well."""
    save_sealed(weights, folder / "model.safetensors", record.metadata())
    config = {
        "architecture": record.model,
        "num_classes": 0,
        "num_features": weights["cls_token"].shape[-1],
        "global_pool": "token",
        "model_args": _timm_arguments(record),
        "pretrained_cfg": {
            "tag": "croc",
            "input_size": [3, record.image_px, record.image_px],
            "fixed_input_size": False,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "num_classes": 0,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": hub_license(record.license) or "other",
        },
    }
    _write_json(folder / "config.json", config)


def write_torchhub(folder: Path, record: WeightsRecord, weights: Weights) -> None:
    write_timm(folder, record, weights)
    shutil.copyfile(Path(__file__).with_name("hubconf.py"), folder / "hubconf.py")


def write_transformers(folder: Path, record: WeightsRecord, weights: Weights) -> str:
    """As the library transformers saves its own; returns its class."""
    renamed, config = convert(_plain_vit(record, weights), record.model)
    save_sealed(renamed, folder / "model.safetensors", {"format": "pt"})
    _write_json(folder / "config.json", config)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": record.image_px, "width": record.image_px},
        "resample": 3,  # Pillow's number of bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
    }
    _write_json(folder / "preprocessor_config.json", processor)
    return config["architectures"][0]


class _ClsAndPatches(nn.Module):
    """Both after the final norm; registers are left out."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit
        trace_rotations(vit)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.vit.forward_features(images)
        return tokens[:, 0], tokens[:, self.vit.num_prefix_tokens :]


def trace_rotations(network: Any) -> None:
    """Make DINOv3's rotary positions depend on the size of the images in a graph as well."""
    if isinstance(getattr(network, "rope", None), RotaryEmbeddingDinoV3):
        network.rope.get_embed = partial(_rotations, network.rope)


def _rotations(rope: Any, shape: Any) -> Tensor:
    """DINOv3's, as timm's, which divides by float(rows): in a graph, that is constant."""
    places = [(torch.arange(n) + 0.5 + rope.grid_offset) / n for n in shape]
    grid = torch.stack(torch.meshgrid(*places, indexing="ij"), dim=-1).flatten(0, 1)
    return torch.cat(rope._get_pos_embed_from_coords(2 * grid - 1), dim=-1)


def check_onnx(dtype: str | None) -> None:
    if dtype == "bfloat16":
        raise UserError("--dtype bfloat16: graphs of ONNX are written in float32, leave it out")
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("--to onnx needs onnx and onnxscript: pip install 'croc[onnx]'")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's progress and warnings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)


def make_graph(
    network: nn.Module,
    example: Tensor,
    inputs: list[str],
    outputs: list[str],
    dynamic_shapes: Any,
    output_shapes: Sequence[Sequence[str | int]],
) -> Any:
    """An ONNX program of a network; its `save(path)` writes it."""
    from onnx_ir import Shape

    with quiet():
        program: Any = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=dynamic_shapes,
        )
    graph = program.model.graph
    for value, shape in zip(graph.outputs, output_shapes):
        value.shape = Shape(shape)
    nodes = [part for node in graph.all_nodes() for part in (node, *node.outputs)]
    for part in (program.model, graph, *graph.inputs, *graph.initializers.values(), *nodes):
        part.metadata_props.clear()  # paths of this machine's Python files
    return program


def write_onnx(folder: Path, record: WeightsRecord, weights: Weights) -> None:
    """One graph for batches and images of any size that the patches divide; it resizes the
    position embedding as timm does."""
    vit = _plain_vit(record, weights)
    patch_px, width, rows = record.patch_px, vit.embed_dim, vit.patch_embed.grid_size[0]
    # Not the training's grid: for that one timm resizes nothing, and neither would the graph.
    example = torch.zeros(2, 3, patch_px * (rows + 1), patch_px * (rows + 2))
    program = make_graph(
        _ClsAndPatches(vit).eval(),
        example,
        ["images"],
        ["cls", "patches"],
        ({0: Dim("batch"), 2: patch_px * Dim("rows"), 3: patch_px * Dim("columns")},),
        (["batch", width], ["batch", "rows*columns", width]),
    )
    program.save(folder / "model.onnx")  # weights of more than 2 GB go into a file beside it
    config = {
        "architecture": record.model,
        "input": {
            "name": "images",
            "shape": ["batch", 3, f"{patch_px} × rows", f"{patch_px} × columns"],
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "interpolation": "bicubic",
            "trained_at_px": record.image_px,
        },
        "outputs": {"cls": ["batch", width], "patches": ["batch", "rows × columns", width]},
        "patch_px": patch_px,
        "dtype": "float32",
    }
    _write_json(folder / "config.json", config)


def _timm_arguments(record: WeightsRecord) -> dict[str, Any]:
    """What `timm.create_model` needs in addition to the name."""
    return {
        "img_size": record.image_px,
        "patch_size": record.patch_px,
        "depth": record.depth,
        "num_classes": 0,
        "global_pool": "token",
        "dynamic_img_size": True,
    }


def _plain_vit(record: WeightsRecord, weights: Weights) -> Any:
    """Of timm's own layers, instead of ours."""
    with torch.random.fork_rng(devices=[]):  # timm's initial values are overwritten
        vit: Any = timm.create_model(record.model, **_timm_arguments(record))
    vit.load_state_dict(weights)
    return vit.eval().requires_grad_(False)


def plain_network(backbone: VitBackbone | ConvBackbone) -> Any:
    """A copy of timm's own layers, for a graph."""
    made = backbone.made
    network: Any = backbone.vit if isinstance(backbone, VitBackbone) else backbone.network
    if isinstance(made, WeightsRecord):
        made = Blueprint(made.model, _timm_arguments(made))
    if made is None:
        raise UserError(f"{backbone.name} was not opened by croc, so it cannot be exported")
    plain: Any = made.build()
    plain.load_state_dict(network.state_dict())
    trace_rotations(plain)
    return plain.eval().requires_grad_(False)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


WRITERS = {
    "timm": write_timm,
    "transformers": write_transformers,
    "torchhub": write_torchhub,
    "onnx": write_onnx,
    "safetensors": write_timm,
}
