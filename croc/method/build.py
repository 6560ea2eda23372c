"""The methods by their configurations, and the one list of what is compiled."""

import re
from typing import Any

import torch

from croc.config import DinoConfig, MaeConfig, PretrainConfig
from croc.method.backbone import Backbone
from croc.method.croc import Croc, Network
from croc.method.heads import ImageHead, ProjectionHead
from croc.method.mae import Mae, MaeNetwork

Method = Croc | Mae

COMPILED: dict[type, tuple[str, ...]] = {
    Croc: ("make_views", "cluster_tokens", "weighted_total", "softness"),
    Network: ("pool", "distil", "gram_distance"),
    Backbone: ("_embed", "_finish", "_describe_last", "_draw_drop_paths"),
    ImageHead: ("images",),
    ProjectionHead: ("images", "clusters"),
    Mae: ("make_views",),
    MaeNetwork: ("compare",),
}
"""Functions that are compiled, beside the blocks: in parts, so that each part can be timed."""
MAX_VERSIONS = 64
"""Of one function; beyond, torch would stop compiling it, with a warning only."""


def build_method(config: PretrainConfig, device: torch.device, compile: bool) -> Method:
    """The method of this configuration."""
    if isinstance(config, DinoConfig):  # CrocConfig is one too
        method = Croc(config, device)
    else:
        assert isinstance(config, MaeConfig)
        method = Mae(config, device)
    if compile:
        compile_parts(method)
    return method


def compile_parts(method: Method) -> None:
    """For the shapes at hand, again for others: there are two at most in a run, the early views
    and the later ones. By default torch would compile for any shape at the second, which is slower.
    """
    torch._dynamo.config.recompile_limit = MAX_VERSIONS
    parts: list[Any] = [method]
    for network in method.modules.values():
        for name, module in network.named_modules():
            parts.append(module)
            if re.search(r"\bblocks\.\d+$", name):  # alike, so that one is compiled for all
                module.compile(dynamic=False)
    for part in parts:
        for name in COMPILED.get(type(part), ()):
            setattr(part, name, torch.compile(getattr(part, name), dynamic=False))
