"""`croc evaluate table`: flags to weights and cells. Nothing here imports torch."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from croc.arguments import parse
from croc.errors import UserError
from croc.eval.command import (
    DEFAULTS,
    EvaluateOptions,
    by_epochs_or_steps,
    given_kind,
    with_default,
)
from croc.eval.protocols import (
    PROTOCOLS,
    InContextConfig,
    KmeansConfig,
    LinearConfig,
    VideoConfig,
    WithinConfig,
    protocols_of,
)
from croc.eval.table.layout import one_line

PROGRAM = "croc evaluate table"
SIZES = {"video": "short_px"}
SPEC = re.compile(r"[a-z0-9]+:\S")


@dataclass(frozen=True)
class TableOptions(EvaluateOptions):
    """Several weights on several data sets, one table; what is finished is not computed again."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=WEIGHTS, or just WEIGHTS: a run's folder or checkpoint, timm:NAME, timm:NAME@FILE,
    random:NAME, random:RUN; a row each."""
    data: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """KIND:PATH, a folder or a .tar, as the single protocols take it, or scenes; a column each."""
    protocols: tuple[Literal["linear", "kmeans", "within", "incontext", "video"], ...] = PROTOCOLS
    """Each is scored on the data that allow it."""
    average: bool = True
    """A column with the mean of a protocol's data sets, if there are several."""
    to: str = "tables"
    """Folder of table.md, .tex, .html and .json, of results.jsonl, which grows and holds what is
    finished, and of the pictures."""
    linear: LinearConfig = field(default_factory=LinearConfig)
    kmeans: KmeansConfig = field(default_factory=KmeansConfig)
    within: WithinConfig = field(default_factory=WithinConfig)
    incontext: InContextConfig = field(default_factory=InContextConfig)
    video: VideoConfig = field(default_factory=VideoConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag, given in (("weights", self.weights), ("data", self.data)):
            if not given:
                raise UserError(f"say which {flag}: --{flag} ONE TWO …")
            twice = [each for each in given if given.count(each) > 1]
            if twice:
                raise UserError(f"--{flag} names {twice[0]} twice")
        if not self.protocols:
            raise UserError(f"say which protocols: --protocols {' '.join(PROTOCOLS)}")


@dataclass(frozen=True)
class Wanted:
    """A protocol on a data set, for all weights."""

    protocol: str
    data: str
    config: Any
    adapts: bool
    """Whether the images' size may be changed for patches that do not fit; not one asked for."""
    hold_out: float = 0.0
    """The share of the training part that is scored, instead of the validation part."""

    @property
    def column(self) -> str:
        """K-means with 4 blocks has columns of its own beside those with 1."""
        four = self.protocol == "kmeans" and self.config.blocks == 4
        return "kmeans (4 blocks)" if four else self.protocol


def run_command(arguments: list[str]) -> bool:
    """Read the flags and make the table; whether every cell was filled."""
    options, wanted = read_flags(arguments)
    weights = dict(split_label(text) for text in options.weights)
    if len(weights) < len(options.weights):
        labels = [split_label(text)[0] for text in options.weights]
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UserError(f"two of the weights are called {twice!r}: give them LABEL=WEIGHTS")
    from croc.eval.table.make import make_table

    if "--kmeans.blocks" not in _flags(arguments):
        wanted += _with_four_blocks(wanted)
    return make_table(options, weights, wanted)


def _with_four_blocks(wanted: Sequence[Wanted]) -> list[Wanted]:
    """K-means again on the last 4 blocks; not on scenes, which are for smaller networks."""
    return [
        replace(each, config=replace(each.config, blocks=4))
        for each in wanted
        if each.protocol == "kmeans" and each.data.partition(":")[0] != "scenes"
    ]


def read_flags(
    arguments: list[str], kind: type[TableOptions] = TableOptions, program: str = PROGRAM
) -> tuple[TableOptions, list[Wanted]]:
    """The options, and what is scored on which data, as each kind of data has it."""
    first = given_kind(arguments)
    read = partial(_parse, arguments, kind, program)
    options = read(first)
    by_kind = {first: options} | _parse_others(options, read, first)
    return options, _wanted(options, by_kind, _flags(arguments))


def split_label(text: str) -> tuple[str, str]:
    """LABEL=WEIGHTS in its parts; weights that hold a = themselves are known by their look."""
    label, equals, spec = text.partition("=")
    if not equals or SPEC.match(label) or Path(text).exists():
        label, spec = text, text
    label = one_line(label)
    if not label or not spec:
        raise UserError(f"--weights {text}: give LABEL=WEIGHTS, or just the weights")
    return label, spec


def _parse(
    arguments: list[str], options: type[TableOptions], program: str, data_kind: str
) -> TableOptions:
    """The options for a kind of data: what is not asked for is as its papers have it."""
    for protocol, default in DEFAULTS.items():
        config = default(data_kind)
        if protocol == "linear":
            config = by_epochs_or_steps(config, _flags(arguments))
        options = with_default(options, protocol, config)
    return parse(options, arguments, program)


def _parse_others(
    options: TableOptions, read: Callable[[str], TableOptions], first_kind: str
) -> dict[str, TableOptions]:
    """The same flags for the other kinds of data."""
    found = {}
    kinds = dict.fromkeys(spec.partition(":")[0] for spec in options.data)
    for kind in (kind for kind in kinds if kind != first_kind):
        try:
            found[kind] = read(kind)
        except UserError as error:  # what suits one kind of data may not suit another
            raise UserError(f"{kind}: {error}") from None
    return found


def _flags(arguments: list[str]) -> set[str]:
    words = (word.partition("=")[0] for word in arguments)
    return {word.replace("_", "-") for word in words if word.startswith("--")}


def _wanted(
    options: TableOptions, by_kind: dict[str, TableOptions], flags: set[str]
) -> list[Wanted]:
    wanted, held = [], options.hold_out
    for protocol in dict.fromkeys(options.protocols):
        size = SIZES.get(protocol, "image_px")
        adapts = f"--{protocol}.{size}".replace("_", "-") not in flags
        fitting = [spec for spec in options.data if protocol in protocols_of(spec, held)]
        if not fitting and options.protocols != PROTOCOLS:
            why = " with --hold-out" if held else ""
            raise UserError(f"{protocol} cannot be scored on {', '.join(options.data)}{why}")
        configs = [getattr(by_kind[spec.partition(":")[0]], protocol) for spec in fitting]
        wanted += [
            Wanted(protocol, spec, config, adapts, held) for spec, config in zip(fitting, configs)
        ]
    for spec in options.data:
        if spec not in {each.data for each in wanted}:
            allowed = ", ".join(protocols_of(spec, held))
            raise UserError(f"--protocols: {spec} allows {allowed}, none of which was asked for")
    return wanted
