"""`croc evaluate`: flags to protocols. Nothing here imports torch before the flags are read."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from croc.arguments import parse
from croc.errors import UserError
from croc.eval.protocols import (
    PROTOCOLS,
    InContextConfig,
    KmeansConfig,
    LinearConfig,
    VideoConfig,
    WithinConfig,
    incontext_protocol,
    kmeans_protocol,
    linear_protocol,
    protocols_of,
    video_protocol,
    within_protocol,
)


@dataclass(frozen=True)
class EvaluateOptions:
    """What is scored, and how it is carried out."""

    weights: str
    """The name of shipped weights, a run's folder or checkpoint, a file of weights, timm:NAME,
    timm:NAME@FILE, random:NAME, or random:RUN for a run's network before its first step."""
    data: str
    """KIND:PATH, a folder or a .tar: voc12, coco-things, coco-stuff, coco-stuff-panoptic, ade20k,
    davis17, davis16, folder, coco-things-mini, idd-lite; or scenes, which needs no path."""
    to: str = "evaluations"
    """Folder of results.jsonl, which grows, and of the pictures."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What to compute on."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the backbone; auto is bfloat16 on a GPU and float32 on the CPU."""
    workers: int | None = None
    """Decoding processes; by default one a core, 16 at most."""
    hold_out: float = 0.0
    """Score this share of the training part, chosen by the images' names, train on the rest of it,
    and leave the validation part alone: to make choices by. Not for videos."""

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out < 1:
            raise UserError(
                f"--hold-out must be a share between 0 and 1, such as 0.25: {self.hold_out:g}"
            )
        if self.workers is not None and self.workers < 0:
            raise UserError(f"--workers must be 0 or more: {self.workers}")


@dataclass(frozen=True)
class EvaluateLinear(EvaluateOptions):
    """One linear layer on frozen features, trained on the train part, scored on the other."""

    linear: LinearConfig = field(default_factory=LinearConfig)


@dataclass(frozen=True)
class EvaluateKmeans(EvaluateOptions):
    """K-means on the features of the validation part, clusters matched to classes."""

    kmeans: KmeansConfig = field(default_factory=KmeansConfig)


@dataclass(frozen=True)
class EvaluateWithin(EvaluateOptions):
    """K-means on the features of each image by itself, clusters matched to the image's classes."""

    within: WithinConfig = field(default_factory=WithinConfig)


@dataclass(frozen=True)
class EvaluateIncontext(EvaluateOptions):
    """Patches take the labels of their nearest neighbours among the train part's."""

    incontext: InContextConfig = field(default_factory=InContextConfig)


@dataclass(frozen=True)
class EvaluateVideo(EvaluateOptions):
    """The first frame's mask, carried through each video."""

    masks: str | None = None
    """New folder for the predicted masks, as DAVIS stores them."""
    overlays: str | None = None
    """New folder for a video each, with the prediction painted over."""
    video: VideoConfig = field(default_factory=VideoConfig)


@dataclass(frozen=True)
class EvaluateAll(EvaluateOptions):
    """Every protocol that the data allow, each as its data set's papers have it."""

    data: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """One or more of those that the single protocols take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise UserError("say which data: --data voc12:PATH davis17:PATH …")


KINDS: dict[str, type[EvaluateOptions]] = {
    "linear": EvaluateLinear,
    "kmeans": EvaluateKmeans,
    "within": EvaluateWithin,
    "incontext": EvaluateIncontext,
    "video": EvaluateVideo,
    "all": EvaluateAll,
}
DEFAULTS: dict[str, Callable[[str], Any]] = {
    "linear": linear_protocol,
    "kmeans": kmeans_protocol,
    "within": within_protocol,
    "incontext": incontext_protocol,
    "video": video_protocol,
}


def run_command(protocol: str, arguments: list[str]) -> None:
    """Read the flags, evaluate, print where it all lies."""
    program = f"croc evaluate {protocol}"
    if protocol == "all":
        asked: Any = parse(EvaluateAll, arguments, program)
        wanted = [(name, spec) for spec in asked.data for name in _allowed(asked, spec)]
        configs = [DEFAULTS[name](spec.partition(":")[0]) for name, spec in wanted]
    else:
        asked = _parse_one(protocol, arguments, program)
        if protocol not in _allowed(asked, asked.data):
            fitting = ", ".join(_allowed(asked, asked.data))
            raise UserError(f"{protocol} cannot be scored on {asked.data}, it allows {fitting}")
        wanted, configs = [(protocol, asked.data)], [getattr(asked, protocol)]
    from croc.eval.evaluate import Request, evaluate

    requests = [
        Request(
            name,
            spec,
            config,
            masks=getattr(asked, "masks", None),
            overlays=getattr(asked, "overlays", None),
            adapts=protocol == "all",
            hold_out=asked.hold_out,
        )
        for (name, spec), config in zip(wanted, configs)
    ]
    evaluate(asked, requests)


def _allowed(asked: EvaluateOptions, spec: str) -> tuple[str, ...]:
    if asked.hold_out and isinstance(asked, EvaluateVideo):
        raise UserError("--hold-out: videos have no training part")
    return protocols_of(spec, asked.hold_out)


def _parse_one(protocol: str, arguments: list[str], program: str) -> Any:
    default = DEFAULTS[protocol](given_kind(arguments))
    if protocol == "linear":
        default = by_epochs_or_steps(default, {word.partition("=")[0] for word in arguments})
    return parse(with_default(KINDS[protocol], protocol, default), arguments, program)


def given_kind(arguments: list[str]) -> str:
    """The data's kind decides the defaults, so it is looked up before the flags are read."""
    kind = ""
    for number, word in enumerate(arguments):
        if word == "--data" and number + 1 < len(arguments):
            kind = arguments[number + 1].partition(":")[0]
        elif word.startswith("--data="):
            kind = word.removeprefix("--data=").partition(":")[0]
    return kind


def by_epochs_or_steps(default: LinearConfig, flags: set[str]) -> LinearConfig:
    """Who asks for one of them need not take back the other; who asks for both is told."""
    if "--linear.epochs" in flags and default.epochs is None:
        return dataclasses.replace(default, epochs=1, steps=None)
    if "--linear.steps" in flags and default.steps is None:
        return dataclasses.replace(default, epochs=None, steps=1)
    return default


def with_default(kind: type, protocol: str, config: Any) -> type:
    """The same options with another default, which tyro's --help then shows."""
    changed = dataclasses.make_dataclass(
        kind.__name__,
        [(protocol, type(config), field(default_factory=lambda: config))],
        bases=(kind,),
        frozen=True,
    )
    changed.__doc__ = kind.__doc__
    return changed


assert set(DEFAULTS) == set(PROTOCOLS)
