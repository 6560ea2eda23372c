"""Networks as ONNX graphs: `croc export --to onnx`, and segmentation heads."""

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
from croc.io import write_json
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.record import Record, RunRecord

OPSET = 18
"""The first whose Resize has antialiasing: the lower, the more runtimes know it."""


def check_onnx(dtype: str | None) -> None:
    if dtype == "bfloat16":
        raise UserError("--dtype bfloat16: ONNX graphs are written in float32; omit --dtype")
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("--to onnx needs onnx and onnxscript: pip install 'croc[onnx]'")


def write_onnx(folder: Path, record: RunRecord, weights: dict[str, Tensor]) -> None:
    """One graph for batches and images of any size that the patches divide; it resizes the
    position embedding as timm does."""
    network = plain_network(record, weights)
    patch_px, width, rows = record.patch_px, network.embed_dim, network.patch_embed.grid_size[0]
    # Not the training's grid: for that one timm resizes nothing, and neither would the graph.
    example = torch.zeros(2, 3, patch_px * (rows + 1), patch_px * (rows + 2))
    program = make_graph(
        _ClsAndPatches(network).eval(),
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
    write_json(folder / "config.json", config)


class _ClsAndPatches(nn.Module):
    """Both after the final norm; registers are left out."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.vit.forward_features(images)
        return tokens[:, 0], tokens[:, self.vit.num_prefix_tokens :]


def plain_network(record: Record, weights: dict[str, Tensor]) -> Any:
    """A network in timm's own layers instead of our fused ones, with rotary positions that follow
    the size of the images in a graph, too."""
    network: Any = (record.timm_model if isinstance(record, RunRecord) else record).build()
    network.load_state_dict(weights)
    if isinstance(getattr(network, "rope", None), RotaryEmbeddingDinoV3):
        network.rope.get_embed = partial(_rotations, network.rope)
    return network.eval().requires_grad_(False)


def _rotations(rope: Any, shape: Any) -> Tensor:
    """DINOv3's, as timm's, which divides by float(rows): in a graph, that is constant."""
    axes = [(torch.arange(n) + 0.5 + rope.grid_offset) / n for n in shape]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)
    return torch.cat(rope._get_pos_embed_from_coords(2 * grid - 1), dim=-1)


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
