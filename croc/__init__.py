"""CrOC: dense visual features from unlabeled images of scenes, by online clustering.

docs/api.md documents the public names. They are imported on first use, since torch and timm take
seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from croc.config import ClusterConfig
    from croc.errors import Interrupted, UserError
    from croc.eval.datasets import LabeledImage, register_dataset
    from croc.lab.api import (
        Features,
        Run,
        cluster,
        evaluate,
        features,
        load_backbone,
        pretrain,
        segment,
    )
    from croc.method.types import Clusters
    from croc.results import Result
    from croc.segmentation.segmenter import Segmenter, load_segmenter

__version__ = "0.1.0"
__all__ = [
    "ClusterConfig",
    "Clusters",
    "Features",
    "Interrupted",
    "LabeledImage",
    "Result",
    "Run",
    "Segmenter",
    "UserError",
    "__version__",
    "cluster",
    "evaluate",
    "features",
    "load_backbone",
    "load_segmenter",
    "pretrain",
    "register_dataset",
    "segment",
]

_NAMES = {
    "croc.config": "ClusterConfig",
    "croc.errors": "Interrupted UserError",
    "croc.eval.datasets": "LabeledImage register_dataset",
    "croc.results": "Result",
    "croc.lab.api": "Features Run cluster evaluate features load_backbone pretrain segment",
    "croc.method.types": "Clusters",
    "croc.segmentation.segmenter": "Segmenter load_segmenter",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
