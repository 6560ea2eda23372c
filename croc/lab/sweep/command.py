"""The options of `croc sweep` and the runs they describe. Nothing here imports torch."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from croc.arguments import parse
from croc.config import PretrainConfig, require
from croc.errors import UserError
from croc.eval.protocols import PROTOCOLS
from croc.tables import one_line

OpenRecipe = Callable[[str], tuple[PretrainConfig, str]]
"""From the word on the command line to a recipe's configuration and name."""
EVALUATION = (*(f"--{protocol}." for protocol in PROTOCOLS), "--device", "--precision", "--workers")
"""Prefixes of the options that are those of `croc evaluate table`."""
OURS = {
    "--run.seed": "--sweep.seeds sets the seeds",
    "--run.folder": "--sweep.to sets the folder",
    "--run.devices": "start the same command once per GPU: the processes share the runs",
    "--run.nodes": "start the same command once per GPU: the processes share the runs",
}


@dataclass(frozen=True)
class SweepConfig:
    """What to vary, what to evaluate on, and where to write the results."""

    to: str
    """Output folder for the runs, sweep.json, sweep.md and sweep.png. An existing sweep resumes."""
    data: tuple[str, ...]
    """KIND:PATH (a folder or a .tar) as for `croc evaluate table`, or scenes."""
    vary: str | None = None
    """One option of the recipe, without the leading dashes, such as cluster.position-weight."""
    values: tuple[str, ...] = ()
    """The values to try, one setting each; quote values that contain spaces: '0.1 1'."""
    settings: tuple[str, ...] = ()
    """Instead of vary and values: 'NAME=OPTIONS' for each setting. OPTIONS may be empty, contain
    several options, or start with another recipe: 'K 6=--cluster.k-select fixed --cluster.k-max 6',
    'DINO=@dino-demo'."""
    seeds: tuple[int, ...] = (0,)
    """Every setting is trained with each seed."""
    protocols: tuple[Literal["linear", "kmeans", "within", "incontext", "video"], ...] = PROTOCOLS
    """Each is run on the datasets that support it."""
    hold_out: float = 0.0
    """Score on this held-out fraction of the training split instead of the validation split, so
    that choices made by the sweep do not overfit to the latter."""
    untrained: bool = True
    """Also evaluate the untrained networks."""

    def __post_init__(self) -> None:
        require(self.to != "", "--sweep.to is empty: name a folder")
        require(
            (self.vary is None) == (not self.values),
            "--sweep.vary and --sweep.values go together: an option, and its values",
        )
        require(
            bool(self.values) != bool(self.settings),
            "pass either --sweep.vary OPTION --sweep.values A B …, or "
            "--sweep.settings NAME=OPTIONS …",
        )
        for name in ("data", "values", "settings", "seeds", "protocols"):
            values = getattr(self, name)
            optional = name in ("values", "settings")
            require(bool(values) or optional, f"--sweep.{name} is empty")
            for each in values:
                require(values.count(each) == 1, f"--sweep.{name} names {each} twice")


@dataclass(frozen=True)
class Run:
    """A setting with a seed, in a folder of its own."""

    setting: str
    recipe: str
    options: tuple[str, ...]
    """The setting's own, in addition to those that all settings share."""
    config: PretrainConfig

    @property
    def name(self) -> str:
        return f"{self.setting}, seed {self.config.run.seed}"

    @property
    def folder(self) -> Path:
        return Path(str(self.config.run.folder))


def run_command(recipe: str, arguments: Sequence[str], open_recipe: OpenRecipe) -> bool:
    """Run the sweep; whether every run succeeded."""
    program = f"croc sweep {recipe}"
    default, name = open_recipe(recipe)
    sections: Any = [
        (each.name, each.type, getattr(default, each.name)) for each in fields(default)
    ]
    options = make_dataclass("Sweep", [("sweep", SweepConfig), *sections], frozen=True)
    options.__doc__ = (
        "Run an ablation: train every setting with every seed, evaluate and plot. "
        "Options of croc evaluate table (--linear.steps 500, --device cpu) are also accepted."
    )
    words = split_words(arguments)
    own = ["--help"] if {"-h", "--help"} & set(arguments) else words["sweep"]
    sweep = parse(options, own, program).sweep
    runs = plan_runs(sweep, recipe, words["recipe"], open_recipe)
    from croc.lab.sweep.sweep import run_sweep

    return run_sweep(name, sweep, runs, words["recipe"], words["evaluation"])


def split_words(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The options of the sweep, of the evaluation and of the recipe, each with its values.

    They are split as text: each setting adds its options to the recipe's, and they need to be valid
    only together (`--cluster.k-select fixed` needs a k-max).
    """
    words: dict[str, list[str]] = {"sweep": [], "evaluation": [], "recipe": []}
    part = "recipe"
    for word in arguments:
        if word.startswith("--"):
            own = "evaluation" if word.startswith(EVALUATION) else "recipe"
            part = "sweep" if word.startswith("--sweep.") else own
        words[part].append(word)
    return words


def plan_runs(
    sweep: SweepConfig, recipe: str, words: Sequence[str], open_recipe: OpenRecipe
) -> list[Run]:
    """Every setting with every seed, parsed and checked.

    Numbers are sorted, names stay in the order given. Seed by seed: a sweep that is stopped early
    has the whole curve of some seeds.
    """
    options: dict[str, list[str]] = {}
    for value in sweep.values:
        options[one_line(value)] = [f"--{sweep.vary}", *_split(value)]
    for text in sweep.settings:
        name, equals, rest = text.partition("=")
        name = one_line(name)
        if not equals or not name or name.startswith("-"):
            raise UserError(f"--sweep.settings {text!r}: give 'NAME=OPTIONS', or 'NAME=' for none")
        if name in options:
            raise UserError(f"two settings are called {name!r}: rename one")
        options[name] = _split(rest)
    settings: dict[str, Run] = {}
    for name, own in options.items():
        used = own.pop(0)[1:] if own and own[0].startswith("@") else recipe
        for word in (*words, *own):
            flag = word.partition("=")[0].replace("_", "-")
            if flag in OURS:
                raise UserError(f"leave out {flag}: {OURS[flag]}")
        slug = re.sub(r"[^\w.+-]+", "-", name).strip("-") or "setting"
        try:
            default, recipe_name = open_recipe(used)
            # A setting's options come last and so override the recipe's.
            config = parse(type(default), [*words, *own], f"croc pretrain {used}", default)
        except UserError as error:
            raise UserError(f"setting {name!r}: {error}") from None
        for other, earlier in settings.items():
            names = f"{earlier.setting!r} and {name!r}"
            if earlier.config == config:
                raise UserError(f"the settings {names} are the same: leave one out")
            if other == slug:
                raise UserError(f"the settings {names} would share a folder: rename one")
        settings[slug] = Run(name, recipe_name, tuple(own), config)
    ordered = list(settings.items())
    if all(is_number(name) for name in options):
        ordered.sort(key=lambda item: float(item[1].setting))
    runs = []
    for seed in sweep.seeds:
        for slug, setting in ordered:
            folder = str(Path(sweep.to) / "runs" / f"{slug}-seed-{seed}")
            run = replace(setting.config.run, seed=seed, folder=folder, devices=1, nodes=1)
            runs.append(replace(setting, config=replace(setting.config, run=run)))
    return runs


def is_number(text: str) -> bool:
    try:
        return float(text) == float(text)  # not nan
    except ValueError:
        return False


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r} cannot be split into options: {error}") from None
