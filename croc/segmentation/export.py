"""`croc segment export`: image to classes as one network, which runs without CrOC."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from timm.models import eva, vision_transformer
from torch import Tensor, nn
from torch.export import Dim

from croc.errors import UserError
from croc.eval.incontext import Memory
from croc.io import replacing
from croc.segmentation.options import ExportOptions
from croc.segmentation.segmenter import Segmenter, check_new, load_segmenter
from croc.weights.backbones import VitBackbone
from croc.weights.onnx import check_onnx, make_graph, plain_network, quiet


class ImageToClasses(nn.Module):
    """Maps RGB images in [0, 1], whose sides are multiples of the patch size, to class maps."""

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        backbone: Any = segmenter.backbone
        self.is_vit = isinstance(backbone, VitBackbone)
        network = backbone.vit if self.is_vit else backbone.network
        self.network: Any = plain_network(backbone.record, network.state_dict())
        self.blocks = segmenter.blocks
        self.head: Any = segmenter.head
        self.mean = nn.Buffer(torch.tensor(backbone.mean)[:, None, None])
        self.deviation = nn.Buffer(torch.tensor(backbone.std)[:, None, None])

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B H W"]:
        pixels = (images - self.mean) / self.deviation
        if self.is_vit:
            maps = self.network.forward_intermediates(
                pixels, indices=self.blocks, norm=True, output_fmt="NCHW", intermediates_only=True
            )
            features = torch.cat(maps, dim=1)
        else:
            features = self.network(pixels)[-1]
        size = (images.shape[2], images.shape[3])
        scores = F.interpolate(self.head(features), size=size, mode="bilinear")
        return scores.argmax(dim=1).to(torch.uint8)


def resample_positions(
    positions: Tensor, new_size: Any, num_prefix_tokens: int = 1, **_: Any
) -> Tensor:
    """Like timm's function, but without its early return for unchanged sizes, which torch.export
    would turn into a constraint on the image size."""
    first, rest = positions[:, :num_prefix_tokens], positions[:, num_prefix_tokens:]
    side = math.isqrt(rest.shape[1])
    grid = rest.float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=tuple(new_size), mode="bicubic", antialias=True)
    return torch.cat([first, grid.flatten(2).mT.to(first.dtype)], dim=1)


@contextmanager
def resampling_at_any_size() -> Iterator[None]:
    """Context in which timm resamples position embeddings at every image size."""
    name = "resample_abs_pos_embed"
    modules, usual = (vision_transformer, eva), getattr(eva, name)
    for module in modules:
        setattr(module, name, resample_positions)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, usual)


def export(options: ExportOptions) -> list[str]:
    path = Path(options.to)
    if path.suffix not in (".onnx", ".pt2"):
        raise UserError(f"--to {options.to}: pass a file that ends in .onnx or .pt2")
    check_new(path)
    if path.suffix == ".onnx":
        check_onnx(None)
    segmenter = load_segmenter(options.head)
    if isinstance(segmenter.head, Memory):
        raise UserError(
            f"{options.head} is an in-context head, which cannot be exported: fit a linear one"
        )
    unit = segmenter.backbone.stride_px
    count = segmenter.image_px // unit
    # Must differ from the size of the position embeddings: at that size timm skips resampling, and
    # the exported graph would, too.
    example = torch.rand(2, 3, unit * (count + 1), unit * (count + 2))
    dynamic = ({0: Dim("batch"), 2: unit * Dim("rows"), 3: unit * Dim("columns")},)
    metadata = {
        "classes": list(segmenter.classes),
        "colors": [list(color) for color in segmenter.colors],
        "input": f"RGB in [0, 1]; height and width must be multiples of {unit} px; "
        f"trained at {segmenter.image_px} px",
        "image_px": segmenter.image_px,
        "resize": segmenter.resize,
    }
    network = ImageToClasses(segmenter).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, resampling_at_any_size():
        if path.suffix == ".onnx":
            output = (["batch", f"{unit}*rows", f"{unit}*columns"],)
            graph = make_graph(network, example, ["images"], ["classes"], dynamic, output)
            graph.model.metadata_props.update({key: json.dumps(x) for key, x in metadata.items()})
            graph.save(partial)
        else:
            with quiet(), torch.no_grad():
                program = torch.export.export(network, (example,), dynamic_shapes=dynamic)
            named = partial.with_suffix(".pt2")  # torch insists on the name's end
            torch.export.save(program, named, extra_files={"metadata.json": json.dumps(metadata)})
            named.rename(partial)
    return [f"{path}: maps images in [0, 1] to the indices of {len(segmenter.classes)} classes"]
