"""What CrOC uses of Lightning Fabric; the only place that imports it.

Fabric imports torchmetrics to compare its version, and that imports SciPy's statistics and
transformers: a third of the time that a command needs to start. Fabric works without it.
"""

import sys

_is_hidden = "torchmetrics" not in sys.modules
if _is_hidden:
    sys.modules["torchmetrics"] = None  # pyright: ignore[reportArgumentType]
try:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from lightning_fabric.strategies.strategy import Strategy
    from lightning_fabric.utilities.imports import _IS_INTERACTIVE as IS_INTERACTIVE
    from lightning_fabric.wrappers import _FabricModule as FabricModule
finally:
    if _is_hidden:
        del sys.modules["torchmetrics"]

__all__ = [
    "IS_INTERACTIVE",
    "DDPStrategy",
    "Fabric",
    "FabricModule",
    "MixedPrecision",
    "ModelParallelStrategy",
    "Strategy",
]
