"""What `croc sweep` takes beside a recipe's own options. Nothing here imports torch."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from croc.config import PretrainConfig, require
from croc.eval.protocols import PROTOCOLS

EVALUATION = (*(f"--{protocol}." for protocol in PROTOCOLS), "--device", "--precision", "--workers")
"""How the options begin that `croc evaluate table` is given."""


@dataclass(frozen=True)
class SweepConfig:
    """What is varied, what it is scored on, and where it is written."""

    to: str
    """Folder of the runs, of sweep.json, sweep.md and sweep.png. A sweep found there goes on."""
    data: tuple[str, ...]
    """KIND:PATH, a folder or a .tar, as `croc evaluate table` takes them, or scenes."""
    vary: str | None = None
    """One option of the recipe, without the dashes in front: cluster.position-weight."""
    values: tuple[str, ...] = ()
    """Its values, a setting each; one of several words is quoted: '0.1 1'."""
    settings: tuple[str, ...] = ()
    """Instead of vary and values, 'NAME=OPTIONS' each, where OPTIONS may be none, several, or
    begin with another recipe: 'K 6=--cluster.k-select fixed --cluster.k-max 6', 'DINO=@dino-demo'.
    """
    seeds: tuple[int, ...] = (0,)
    """Every setting is trained with each of them."""
    protocols: tuple[Literal["linear", "kmeans", "within", "incontext", "video"], ...] = PROTOCOLS
    """Each is scored on the data that allow it."""
    hold_out: float = 0.0
    """Score on this share of the training part instead of on the validation part, so that what is
    chosen by a sweep has not seen the latter."""
    untrained: bool = True
    """Score the networks before their first step, too."""

    def __post_init__(self) -> None:
        require("\0" not in self.to and self.to != "", "--sweep.to is no path")
        require(
            (self.vary is None) == (not self.values),
            "--sweep.vary and --sweep.values go together: an option, and its values",
        )
        require(
            bool(self.values) != bool(self.settings),
            "say what is compared: --sweep.vary OPTION --sweep.values A B …, or "
            "--sweep.settings NAME=OPTIONS …",
        )
        for name in ("data", "values", "settings", "seeds", "protocols"):
            _check_words(name, getattr(self, name))


def _check_words(name: str, given: Sequence[Any]) -> None:
    """The data, seeds and protocols must be there; nothing may be named twice."""
    require(bool(given) or name in ("values", "settings"), f"--sweep.{name} names none")
    for each in given:
        require(given.count(each) == 1, f"--sweep.{name} names {each} twice")


@dataclass(frozen=True)
class SweepOptions:
    """The part of the command line that is the sweep's own."""

    sweep: SweepConfig


@dataclass(frozen=True)
class Words:
    """A command line, taken apart by whom its options are for."""

    sweep: list[str]
    evaluation: list[str]
    recipe: list[str]


def split_words(arguments: Sequence[str]) -> Words:
    """Words that follow an option are its values.

    Text is split, not a parsed configuration: each setting adds its own options to the recipe's,
    and only together must they be valid (`--cluster.k-select fixed` needs a k-max).
    """
    words = Words([], [], [])
    now = words.recipe
    for word in arguments:
        if word.startswith("--sweep."):
            now = words.sweep
        elif word.startswith(EVALUATION):
            now = words.evaluation
        elif word.startswith("--"):
            now = words.recipe
        now.append(word)
    return words


def with_sweep(config: PretrainConfig) -> type:
    """The recipe's options and the sweep's in one, for --help."""
    kind = type(config)
    sections = [
        (
            each.name,
            each.type,
            field(default_factory=partial(getattr, config, each.name)),
        )
        for each in dataclasses.fields(kind)
    ]
    parts: Any = [("sweep", SweepConfig), *sections]
    options = dataclasses.make_dataclass("Sweep", parts, frozen=True)
    options.__doc__ = (
        "An ablation of a recipe: every setting is trained with every seed, scored and drawn. The "
        "options of croc evaluate table (--linear.steps 500, --device cpu) can be given, too."
    )
    return options
