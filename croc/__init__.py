"""CrOC: dense visual features from unlabelled scene photographs, by online clustering."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from croc.evals.features import load_backbone

__version__ = "0.1.0"
__all__ = ["__version__", "load_backbone"]


def __getattr__(name: str) -> Any:
    """`croc.load_backbone` needs torch and timm, which `import croc` does not wait for."""
    if name == "load_backbone":
        from croc.evals.features import load_backbone

        return load_backbone
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
