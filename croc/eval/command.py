"""`croc evaluate`: flags to protocols. Nothing here imports torch before the flags are parsed."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from croc.arguments import parse
from croc.errors import UserError
from croc.eval.protocols import DEFAULTS, LinearConfig, Request, protocols_of

HELP = {
    "linear": "One linear layer on frozen features, trained on the training split, scored on the "
    "validation split.",
    "kmeans": "K-means on the features of the validation split, clusters matched to classes.",
    "within": "K-means on the features of each image separately, clusters matched to the image's "
    "classes.",
    "incontext": "Patches take the labels of their nearest neighbours in the training split.",
    "video": "The first frame's mask, propagated through each video.",
}


@dataclass(frozen=True)
class EvaluateOptions:
    """What to score, and how."""

    weights: str
    """Name of bundled weights, a run folder or checkpoint, a weights file, timm:NAME,
    timm:NAME@FILE, random:NAME, or random:RUN for a run's untrained network."""
    data: str
    """KIND:PATH, a folder or a .tar: voc12, coco-things, coco-stuff, coco-stuff-panoptic, ade20k,
    davis17, davis16, folder, coco-things-mini, idd-lite; or scenes, which needs no path."""
    to: str = "evaluations"
    """Output folder for results.jsonl (results are appended) and pictures."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type to run on."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the backbone; auto is bfloat16 on a GPU and float32 on the CPU."""
    workers: int | None = None
    """Data loading workers; by default one per CPU core, at most 16."""
    hold_out: float = 0.0
    """Score on this fraction of the training split, chosen by a hash of the image names, train on
    the rest, and do not use the validation split: for model selection. Not for videos."""

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out < 1:
            raise UserError(
                f"--hold-out must be a share between 0 and 1, such as 0.25: {self.hold_out:g}"
            )
        if self.workers is not None and self.workers < 0:
            raise UserError(f"--workers must be 0 or more: {self.workers}")


@dataclass(frozen=True)
class EvaluateVideo(EvaluateOptions):
    masks: str | None = None
    """New folder for the predicted masks, as DAVIS stores them."""
    overlays: str | None = None
    """New folder for overlay videos, with the prediction painted over."""


@dataclass(frozen=True)
class EvaluateAll(EvaluateOptions):
    """Run every protocol that the data support, with the defaults of each dataset."""

    data: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """One or more datasets, as for the single protocols."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise UserError("pass at least one data set: --data voc12:PATH davis17:PATH …")


def run_command(protocol: str, arguments: list[str]) -> None:
    """Parse the flags and evaluate."""
    program = f"croc evaluate {protocol}"
    if protocol == "all":
        options: Any = parse(EvaluateAll, arguments, program)
        pairs = [
            (name, data) for data in options.data for name in protocols_of(data, options.hold_out)
        ]
        configs = [DEFAULTS[name](data.partition(":")[0]) for name, data in pairs]
    else:
        config = DEFAULTS[protocol](given_kind(arguments))
        if protocol == "linear":
            config = by_epochs_or_steps(config, {word.partition("=")[0] for word in arguments})
        base = dataclasses.make_dataclass(
            "Options",
            [(protocol, type(config), field(default_factory=lambda: config))],
            bases=(EvaluateVideo if protocol == "video" else EvaluateOptions,),
            frozen=True,
        )
        base.__doc__ = HELP[protocol]
        options = parse(base, arguments, program)
        if options.hold_out and protocol == "video":
            raise UserError("--hold-out: videos have no training split")
        allowed = protocols_of(options.data, options.hold_out)
        if protocol not in allowed:
            raise UserError(
                f"{protocol} cannot be scored on {options.data}, it allows {', '.join(allowed)}"
            )
        pairs, configs = [(protocol, options.data)], [getattr(options, protocol)]
    folders = {name: getattr(options, name, None) for name in ("masks", "overlays")}
    settings = {**folders, "adapts": protocol == "all", "hold_out": options.hold_out}
    requests = [Request(*pair, config, **settings) for pair, config in zip(pairs, configs)]
    from croc.eval.evaluate import evaluate

    evaluate(options, requests)


def given_kind(arguments: list[str]) -> str:
    """The kind of data decides the defaults, so it is looked up before the flags are parsed."""
    kind = ""
    for number, word in enumerate(arguments):
        if word == "--data" and number + 1 < len(arguments):
            kind = arguments[number + 1].partition(":")[0]
        elif word.startswith("--data="):
            kind = word.removeprefix("--data=").partition(":")[0]
    return kind


def by_epochs_or_steps(default: LinearConfig, flags: set[str]) -> LinearConfig:
    """Passing one of --linear.epochs and --linear.steps replaces a default of the other."""
    if "--linear.epochs" in flags and default.epochs is None:
        return dataclasses.replace(default, epochs=1, steps=None)
    if "--linear.steps" in flags and default.steps is None:
        return dataclasses.replace(default, epochs=None, steps=1)
    return default
