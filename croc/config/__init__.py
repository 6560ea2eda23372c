"""What a run is: frozen dataclasses, a docstring a field, checked when they are made.

The defaults are the paper's for COCO (its implementation section and appendix); recipes.py
names whole configurations.
"""

from croc.config.checks import require, require_finite, require_least, require_share
from croc.config.data import DataConfig, ViewsConfig
from croc.config.learning import ClusterConfig, DistillationConfig, LossConfig, OptimConfig
from croc.config.network import DecoderConfig, HeadConfig, ImageHeadConfig, ModelConfig
from croc.config.run import RunConfig
from croc.config.whole import METHODS, CrocConfig, DinoConfig, MaeConfig, PretrainConfig

__all__ = [
    "METHODS",
    "ClusterConfig",
    "CrocConfig",
    "DataConfig",
    "DecoderConfig",
    "DinoConfig",
    "DistillationConfig",
    "HeadConfig",
    "ImageHeadConfig",
    "LossConfig",
    "MaeConfig",
    "ModelConfig",
    "OptimConfig",
    "PretrainConfig",
    "RunConfig",
    "ViewsConfig",
    "require",
    "require_finite",
    "require_least",
    "require_share",
]
