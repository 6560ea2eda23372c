"""`croc.evaluate`: the paper's protocols from Python, as `croc evaluate` carries them out."""

import dataclasses
import os
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any, Literal, overload

from croc.errors import UserError
from croc.eval.command import DEFAULTS, EvaluateOptions, by_epochs_or_steps
from croc.eval.evaluate import Request
from croc.eval.evaluate import evaluate as carry_out
from croc.eval.protocols import PROTOCOLS, protocols_of
from croc.eval.results import Result
from croc.lab.api.backbones import name_of
from croc.lab.api.settings import change, check_names

Protocol = Literal["linear", "kmeans", "within", "incontext", "video"]


@overload
def evaluate(
    protocol: Protocol,
    weights: str | os.PathLike[str],
    data: str,
    *,
    results: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    workers: int | None = None,
    hold_out: float = 0.0,
    **options: Any,
) -> Result: ...
@overload
def evaluate(
    protocol: Literal["all"],
    weights: str | os.PathLike[str],
    data: str,
    *,
    results: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    workers: int | None = None,
    hold_out: float = 0.0,
) -> list[Result]: ...
def evaluate(
    protocol: str,
    weights: str | os.PathLike[str],
    data: str,
    *,
    results: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    workers: int | None = None,
    hold_out: float = 0.0,
    **options: Any,
) -> Result | list[Result]:
    """Score frozen dense features by one of the paper's protocols, or by all that data allow.

    The progress goes to stderr.

    Args:
        protocol: "linear" (a linear layer on the features), "kmeans" (clusters matched to
            classes), "within" (the same in each image by itself), "incontext" (labels of the
            nearest neighbours), "video" (a first mask carried along), or "all".
        weights: What `croc.load_backbone` takes, not what it gave: a result says where weights
            came from. A run or its folder is its teacher.
        data: KIND:PATH, such as "voc12:/data/VOC2012" or "folder:mine" for your own photographs
            and label maps (docs/evaluate.md), or "scenes", which needs no path.
        results: The folder whose results.jsonl gets a line, and whose pictures/ a picture of
            predictions; by default nothing is written.
        device: What to compute on; "auto" is a GPU if there is one.
        precision: Of the backbone; "auto" is bfloat16 on a GPU and float32 on the CPU.
        workers: Decoding processes; by default one a core, 16 at most.
        hold_out: Score this share of the training part, to make choices by, instead of the
            validation part.
        options: The protocol's settings by their names, such as `steps=300` for what the command
            line calls `--linear.steps`. What is not given is as the data set's papers have it.

    Returns:
        A `Result`, for "all" a list of them: `scores` by name in percent, the one that papers
            report first; `classes`, the IoU of each; `config`, all settings; and more.

    Raises:
        UserError: In one line, for an unknown protocol or option (with the nearest one), data that
            the protocol cannot be scored on, missing files.

    Examples:
        >>> import croc
        >>> weights = "random:vit_tiny_patch16_224"
        >>> result = croc.evaluate("linear", weights, "scenes:4", steps=2, workers=0)
        >>> list(result.scores), len(result.classes)
        (['mIoU', 'accuracy'], 13)
        >>> croc.evaluate("linear", weights, "scenes", step=2)
        Traceback (most recent call last):
        croc.errors.UserError: there is no option step; perhaps you meant steps
    """
    check_names([protocol], [*PROTOCOLS, "all"], noun="protocol")
    asked = EvaluateOptions(name_of(weights), _kind_and_path(data))
    carried = {"device": device, "precision": precision, "workers": workers, "hold_out": hold_out}
    asked = change(asked, carried)
    requests = _requests(protocol, data, hold_out, options)
    if results is not None:
        found = carry_out(dataclasses.replace(asked, to=os.fspath(results)), requests, show=False)
    else:
        found = _carry_out_nowhere(asked, requests)
    if protocol == "all":
        return found
    if not found:
        raise UserError(f"{data} holds no truth to score against")
    return found[0]


def _kind_and_path(data: object) -> str:
    if isinstance(data, str):
        return data
    said = f"the path {os.fspath(data)}" if isinstance(data, os.PathLike) else f"{data!r}"
    raise UserError(f"data are KIND:PATH, such as 'folder:mine', not {said}")


def _requests(
    protocol: str, data: str, hold_out: float, options: Mapping[str, Any]
) -> list[Request]:
    allowed = protocols_of(data, hold_out)
    if protocol == "all":
        if options:
            raise UserError(f"to change {', '.join(options)}, name one protocol instead of all")
        names = allowed
    else:
        if protocol not in allowed:
            fitting = ", ".join(allowed)
            raise UserError(f"{protocol} cannot be scored on {data}, it allows {fitting}")
        names = (protocol,)
    return [
        Request(name, data, _settings(name, data, options), None, None, protocol == "all", hold_out)
        for name in names
    ]


def _settings(protocol: str, data: str, options: Mapping[str, Any]) -> Any:
    default = DEFAULTS[protocol](data.partition(":")[0])
    if protocol == "linear":
        default = by_epochs_or_steps(default, {f"--linear.{name}" for name in options})
    return change(default, options)


def _carry_out_nowhere(asked: EvaluateOptions, requests: list[Request]) -> list[Result]:
    """Each result is written as it is found; here to a folder that is gone in the end."""
    with TemporaryDirectory(prefix="croc-") as folder:
        found = carry_out(dataclasses.replace(asked, to=folder), requests, show=False)
    return [dataclasses.replace(result, picture=None) for result in found]
