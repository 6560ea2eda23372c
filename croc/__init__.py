"""CrOC: dense visual features from unlabelled scene photographs, by online clustering.

The public names, in the order in which they are most often wanted; docs/api.md tells of each.
They need torch and timm, which `import croc` does not wait for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from croc.api.backbones import load_backbone
    from croc.api.clusters import cluster
    from croc.api.photographs import Features, features
    from croc.api.runs import Run, pretrain
    from croc.api.scores import evaluate
    from croc.config import ClusterConfig
    from croc.errors import AskedToEnd, UserError
    from croc.evals.added import add_data
    from croc.evals.datasets import Labelled
    from croc.evals.results import Result
    from croc.types import Clusters

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
    "load_backbone": "croc.api.backbones",
    "features": "croc.api.photographs",
    "Features": "croc.api.photographs",
    "cluster": "croc.api.clusters",
    "ClusterConfig": "croc.config",
    "Clusters": "croc.types",
    "pretrain": "croc.api.runs",
    "Run": "croc.api.runs",
    "evaluate": "croc.api.scores",
    "Result": "croc.evals.results",
    "add_data": "croc.evals.added",
    "Labelled": "croc.evals.datasets",
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
