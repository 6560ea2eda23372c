"""CrOC: dense visual features from unlabelled scene photographs, by online clustering.

The public names, in the order in which they are most often wanted; docs/api.md tells of each.
They need torch and timm, which `import croc` does not wait for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from croc.config import ClusterConfig
    from croc.errors import AskedToEnd, UserError
    from croc.eval.added import add_data
    from croc.eval.datasets import Labelled
    from croc.eval.results import Result
    from croc.lab.api.backbones import load_backbone
    from croc.lab.api.clusters import cluster
    from croc.lab.api.photographs import Features, features
    from croc.lab.api.runs import Run, pretrain
    from croc.lab.api.scores import evaluate
    from croc.method.types import Clusters

__version__ = "0.1.0"
__all__ = [
    "AskedToEnd",
    "ClusterConfig",
    "Clusters",
    "Features",
    "Labelled",
    "Result",
    "Run",
    "UserError",
    "__version__",
    "add_data",
    "cluster",
    "evaluate",
    "features",
    "load_backbone",
    "pretrain",
]

_HOMES = {
    "load_backbone": "croc.lab.api.backbones",
    "features": "croc.lab.api.photographs",
    "Features": "croc.lab.api.photographs",
    "cluster": "croc.lab.api.clusters",
    "ClusterConfig": "croc.config",
    "Clusters": "croc.method.types",
    "pretrain": "croc.lab.api.runs",
    "Run": "croc.lab.api.runs",
    "evaluate": "croc.lab.api.scores",
    "Result": "croc.eval.results",
    "add_data": "croc.eval.added",
    "Labelled": "croc.eval.datasets",
    "UserError": "croc.errors",
    "AskedToEnd": "croc.errors",
}


def __getattr__(name: str) -> Any:
    """Imported when first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
