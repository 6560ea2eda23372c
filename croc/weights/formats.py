"""The layouts of timm, transformers and ONNX."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from torch import Tensor, nn
from torch.export import Dim

from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.card import hub_license
from croc.weights.checksum import save_sealed
from croc.weights.record import Record, WeightsRecord, metadata
from croc.weights.transformers import convert

Weights = dict[str, Tensor]
OPSET = 18
"""The first whose Resize has antialiasing: the lower, the more runtimes know it."""


def write_file(folder: Path, record: WeightsRecord, vit: Any, weights: Weights) -> None:
    """What `open_backbone` reads."""
    save_sealed(weights, folder / "model.safetensors", metadata(record))


def write_timm(folder: Path, record: WeightsRecord, vit: Any, weights: Weights) -> None:
    """As timm's own on model hubs; by its metadata the file is one of croc's as well."""
    write_file(folder, record, vit, weights)
    config = {
        "architecture": record.model,
        "num_classes": 0,
        "num_features": vit.embed_dim,
        "global_pool": "token",
        "model_args": record.blueprint.options,
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


def write_transformers(folder: Path, record: WeightsRecord, vit: Any, weights: Weights) -> str:
    """As the library transformers saves its own; returns its class."""
    renamed, config = convert(plain_network(record, vit), record.model)
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

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.vit.forward_features(images)
        return tokens[:, 0], tokens[:, self.vit.num_prefix_tokens :]


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


def write_onnx(folder: Path, record: WeightsRecord, vit: Any, weights: Weights) -> None:
    """One graph for batches and images of any size that the patches divide; it resizes the
    position embedding as timm does."""
    patch_px, width, rows = record.patch_px, vit.embed_dim, vit.patch_embed.grid_size[0]
    # Not the training's grid: for that one timm resizes nothing, and neither would the graph.
    example = torch.zeros(2, 3, patch_px * (rows + 1), patch_px * (rows + 2))
    program = make_graph(
        _ClsAndPatches(plain_network(record, vit)).eval(),
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
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "interpolation": "bicubic",
            "trained_at_px": record.image_px,
        },
        "patch_px": patch_px,
    }
    _write_json(folder / "config.json", config)


def plain_network(record: Record, network: nn.Module) -> Any:
    """A copy in timm's own layers instead of ours, with rotary positions that depend on the size of
    the images in a graph as well."""
    blueprint = record.blueprint if isinstance(record, WeightsRecord) else record
    plain: Any = blueprint.build()
    plain.load_state_dict(network.state_dict())
    if isinstance(getattr(plain, "rope", None), RotaryEmbeddingDinoV3):
        plain.rope.get_embed = partial(_rotations, plain.rope)
    return plain.eval().requires_grad_(False)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


WRITERS = {"timm": write_timm, "transformers": write_transformers, "onnx": write_onnx}
