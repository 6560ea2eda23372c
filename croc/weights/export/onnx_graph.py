"""A ViT as one ONNX graph for batches and images of any size that its patches divide."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.export import Dim

from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.export.timm_layout import INTERPOLATION
from croc.weights.page import WeightsPage

OPSET = 18
"""The first whose Resize has antialiasing: the more runtimes know it."""


class ClsAndPatches(nn.Module):
    """Both after the final norm; registers are left out."""

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.vit.forward_features(images)
        return tokens[:, 0], tokens[:, self.vit.num_prefix_tokens :]


def check_onnx() -> None:
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("--to onnx needs onnx and onnxscript: pip install 'croc[onnx]'")


def make_graph(vit: VisionTransformer) -> Any:
    """torch's ONNXProgram; positions are resized in the graph, as timm does it."""
    patch_px, rows = vit.patch_embed.patch_size[0], vit.patch_embed.grid_size[0]
    sizes = {0: Dim("batch"), 2: patch_px * Dim("rows"), 3: patch_px * Dim("columns")}
    # A grid unlike the training's: for that one timm resizes nothing, and neither would the graph.
    example = torch.zeros(2, 3, patch_px * (rows + 1), patch_px * (rows + 2))
    with _silence():
        program: Any = torch.onnx.export(
            ClsAndPatches(vit).eval(),
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["cls", "patches"],
            dynamic_shapes=(sizes,),
        )
    _name_outputs(program.model, vit.embed_dim)
    _forget_origins(program.model)
    return program


def _name_outputs(model: Any, width: int) -> None:
    from onnx_ir import Shape

    model.graph.outputs[0].shape = Shape(["batch", width])
    model.graph.outputs[1].shape = Shape(["batch", "rows*columns", width])


def _forget_origins(model: Any) -> None:
    """Every node tells where on this machine the Python lies that it came from."""
    for node in model.graph.all_nodes():
        for noted in (node, *node.outputs):
            noted.metadata_props.clear()
    for noted in (model, model.graph, *model.graph.inputs, *model.graph.initializers.values()):
        noted.metadata_props.clear()


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter's progress and its libraries' warnings say nothing of the user's weights."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def onnx_config(page: WeightsPage, width: int) -> dict[str, Any]:
    """What a program that runs the graph needs to know."""
    return {
        "architecture": page.model,
        "input": {
            "name": "images",
            "shape": ["batch", 3, f"{page.patch_px} × rows", f"{page.patch_px} × columns"],
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "interpolation": INTERPOLATION,
            "trained_at_px": page.image_px,
        },
        "outputs": {"cls": ["batch", width], "patches": ["batch", "rows × columns", width]},
        "patch_px": page.patch_px,
        "dtype": "float32",
    }
