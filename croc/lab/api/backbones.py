"""`croc.load_backbone`: a frozen network by its name, its run or its file."""

import os

from croc.errors import UserError
from croc.eval import features
from croc.eval.features import ConvBackbone, VitBackbone


def load_backbone(weights: str | os.PathLike[str]) -> VitBackbone | ConvBackbone:
    """Open a backbone, frozen and in float32, on the CPU.

    Args:
        weights: What `--weights` takes: a run or its folder (its teacher is opened), one of its
            checkpoints, a file of weights, the name of shipped weights, `timm:NAME` for a model
            with timm's own weights, or `random:NAME` for an untrained one.

    Returns:
        A module with `name`, `stride_px` (the side of a patch) and `features(images)`, which
            takes "B 3 h w" normalised by ImageNet's mean and deviation and gives
            "B C rows columns". `croc.features` does the reading and normalising for you.

    Raises:
        UserError: In one line, if there is no such run, file or model, or if it does not fit.

    Examples:
        >>> import croc, torch
        >>> backbone = croc.load_backbone("random:vit_tiny_patch16_224")
        >>> backbone.stride_px
        16
        >>> backbone.features(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 192, 4, 6])
    """
    return features.load_backbone(name_of(weights))


def name_of(weights: object) -> str:
    """As `--weights` would have it."""
    if isinstance(weights, str | os.PathLike):
        return os.fspath(weights)
    if isinstance(weights, VitBackbone | ConvBackbone):
        raise UserError(f"{weights.name} is a backbone that is open: give its run, file or name")
    kind = type(weights).__name__
    raise UserError(f"weights are a run, a file or a name, not of type {kind}")
