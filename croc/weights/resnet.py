"""A ResNet's tensors under torchvision's names, which are timm's."""

import re
from collections.abc import Mapping

from torch import Tensor

from croc.errors import UserError
from croc.weights.vit import Found

RESNET_STYLES = {
    "stem.conv1.weight": "detectron2's",
    "conv1.weight": "torchvision's",
    "0.weight": "a torchvision Sequential's",
}
"""The first layer's name in each style of keys, the longest first."""
RENAMED = {
    "stem.conv1.weight": (
        (r"^stem\.", ""),
        (r"^res(\d)\.", lambda found: f"layer{int(found[1]) - 1}."),
        (r"conv(\d)\.norm\.", r"bn\1."),
        (r"shortcut\.norm\.", "downsample.1."),
        (r"shortcut\.weight$", "downsample.0.weight"),
    ),
    "conv1.weight": (),
    "0.weight": (
        (r"^0\.", "conv1."),
        (r"^1\.", "bn1."),
        (r"^([4-7])\.(?=\d)", lambda found: f"layer{int(found[1]) - 3}."),
    ),
}
OURS = re.compile(
    r"conv1\.weight|bn1\.(weight|bias|running_mean|running_var)|"
    r"layer[1-4]\.\d+\.(conv[123]\.weight|downsample\.0\.weight|"
    r"(bn[123]|downsample\.1)\.(weight|bias|running_mean|running_var))"
)
DEPTHS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
"""Blocks of the four stages, and whether they are bottlenecks."""


def read_resnet(own: Mapping[str, Tensor], first: str, source: str) -> Found:
    """`own` are the names after the network's prefix, `first` tells their style."""
    weights, used = {}, []
    for name, value in own.items():
        ours = name
        for pattern, replacement in RENAMED[first]:
            ours = re.sub(pattern, replacement, ours)
        if OURS.fullmatch(ours):
            weights[ours] = value
            used.append(name)
        elif ours.startswith("layer") and not ours.endswith("num_batches_tracked"):
            raise UserError(f"{source} holds a ResNet that is not plain: it has {name}")
    blocks = [_count(weights, f"layer{stage}.") for stage in (1, 2, 3, 4)]
    architecture = DEPTHS.get((tuple(blocks), "layer1.0.conv3.weight" in weights))
    if architecture is None:
        raise UserError(
            f"{source} begins like a ResNet, but {blocks} blocks make none that is known; its keys "
            f"begin with {', '.join(list(own)[:5])}"
        )
    return architecture, {}, weights, used


def _count(weights: Mapping[str, Tensor], stage: str) -> int:
    return 1 + max((int(n.split(".")[1]) for n in weights if n.startswith(stage)), default=-1)
