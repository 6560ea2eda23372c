"""The settings that a sweep compares, read as the command line is. Nothing here imports torch."""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from croc.arguments import parse
from croc.config import PretrainConfig
from croc.errors import UserError
from croc.eval.table.layout import one_line
from croc.lab.sweep.options import SweepConfig

OpenRecipe = Callable[[str], tuple[PretrainConfig, str]]
"""A recipe's configuration and name, from what stands on the command line."""

OURS = {
    "--run.seed": "--sweep.seeds says with which seeds",
    "--run.folder": "--sweep.to says where",
    "--run.devices": "start the same command once a GPU: they share the runs",
    "--run.nodes": "start the same command once a GPU: they share the runs",
}


@dataclass(frozen=True)
class Setting:
    """A point of the x axis: one configuration, to be trained with every seed."""

    name: str
    recipe: str
    options: tuple[str, ...]
    """Beyond those that all settings share."""
    config: PretrainConfig

    @property
    def number(self) -> float | None:
        return number_of(self.name)


@dataclass(frozen=True)
class Run:
    """A setting with a seed, in a folder of its own."""

    setting: Setting
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return run_name(self.setting.name, self.seed)

    @property
    def config(self) -> PretrainConfig:
        run = replace(
            self.setting.config.run, seed=self.seed, folder=str(self.folder), devices=1, nodes=1
        )
        return replace(self.setting.config, run=run)


def plan_settings(
    sweep: SweepConfig, recipe: str, words: Sequence[str], open_recipe: OpenRecipe
) -> list[Setting]:
    """All settings, each checked; numbers in their order, names as they were given."""
    _refuse_ours(words)
    asked = _varied(sweep) if sweep.vary is not None else map(_named, sweep.settings)
    settings = [_make(name, given, recipe, words, open_recipe) for name, given in asked]
    _refuse_twins(settings)
    numbers = [setting.number for setting in settings]
    if None in numbers:
        return settings
    return sorted(settings, key=lambda setting: setting.number or 0.0)


def plan_runs(settings: Sequence[Setting], seeds: Sequence[int], to: Path) -> list[Run]:
    """Seed by seed: a sweep that is ended early has the whole curve of some seeds."""
    runs = [
        Run(setting, seed, to / "runs" / f"{_slug(setting.name)}-seed-{seed}")
        for seed in seeds
        for setting in settings
    ]
    for run in runs:
        _ = run.config  # is it a seed?
        same = next(each for each in runs if each.folder == run.folder)
        if same is not run:
            names = f"{same.setting.name!r} and {run.setting.name!r}"
            raise UserError(f"the settings {names} would share a folder: call one otherwise")
    return runs


def run_name(setting: str, seed: int) -> str:
    return f"{setting}, seed {seed}"


def number_of(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def _varied(sweep: SweepConfig) -> Iterable[tuple[str, list[str]]]:
    for value in sweep.values:
        yield one_line(value), [f"--{sweep.vary}", *_words(value)]


def _named(text: str) -> tuple[str, list[str]]:
    name, equals, options = text.partition("=")
    name = one_line(name)
    if not equals or not name or name.startswith("-"):
        raise UserError(f"--sweep.settings {text!r}: give 'NAME=OPTIONS', or 'NAME=' for none")
    return name, _words(options)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r} cannot be taken apart: {error}") from None


def _make(
    name: str, given: list[str], recipe: str, words: Sequence[str], open_recipe: OpenRecipe
) -> Setting:
    if given and given[0].startswith("@"):
        recipe, given = given[0].removeprefix("@"), given[1:]
    _refuse_ours(given)
    try:
        default, called = open_recipe(recipe)
        # A setting's options come last, and the last counts.
        config: Any = parse(type(default), [*words, *given], f"croc pretrain {recipe}", default)
    except UserError as error:
        raise UserError(f"setting {name!r}: {error}") from None
    return Setting(name, called, tuple(given), config)


def _refuse_ours(words: Iterable[str]) -> None:
    """What the sweep itself gives to its runs."""
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag in OURS:
            raise UserError(f"leave out {flag}: {OURS[flag]}")


def _refuse_twins(settings: Sequence[Setting]) -> None:
    for place, setting in enumerate(settings):
        for earlier in settings[:place]:
            if setting.name == earlier.name:
                raise UserError(f"two settings are called {setting.name!r}: rename one")
            if setting.config == earlier.config:
                names = f"{earlier.name!r} and {setting.name!r}"
                raise UserError(f"the settings {names} are the same: leave one out")


def _slug(name: str) -> str:
    """A folder's name; what two names have in common then, plan_runs refuses."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-") or "setting"
