"""`croc.pretrain`: a run from Python, as `croc pretrain` would carry it out."""

import dataclasses
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from croc.config import METHODS, PretrainConfig
from croc.errors import AskedToEnd, UserError
from croc.eval.features import VitBackbone
from croc.lab.api.backbones import load_backbone
from croc.lab.api.settings import change, check_names
from croc.recipes import RECIPES
from croc.train.log import read_metrics
from croc.train.run_folder import PAGE, read_config

Roots = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
SHORT = {"init": "model", "resume": "run", "folder": "run"}
"""Options that stand without their section, and that section."""
CUSTOM = "custom"
"""The recipe's name where a configuration is given."""


@dataclass(frozen=True, init=False)
class Run:
    """A run's folder, finished or not: `croc.Run("runs/demo")` opens one that is there."""

    folder: Path
    """With config.json, metrics.jsonl, report.html, checkpoints/ and tensorboard/."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not (self.folder / PAGE).is_file():
            raise UserError(f"{self.folder} holds no run: give a folder that croc pretrain wrote")

    @property
    def config(self) -> PretrainConfig:
        """All settings, as the run's config.json has them."""
        return read_config(self.folder / PAGE)[0]

    def metrics(self) -> list[dict[str, float | int]]:
        """The lines of metrics.jsonl: step, epoch, losses, entropies, mean K, images/s and more."""
        return read_metrics(self.folder)

    def __fspath__(self) -> str:
        """Its folder: a run is taken wherever a path or weights are."""
        return str(self.folder)

    def backbone(self) -> VitBackbone:
        """The teacher's backbone of the last checkpoint, frozen: `croc.load_backbone(folder)`."""
        found = load_backbone(self.folder)
        assert isinstance(found, VitBackbone)  # no other can be trained
        return found


def pretrain(
    recipe: str | PretrainConfig,
    *,
    data: Roots | Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Pre-train a backbone, or go on with the run that lies in the folder.

    The progress goes to stderr, as on the command line. Ctrl-C, or a notebook's stop button, saves
    a checkpoint first and then raises KeyboardInterrupt; the same call goes on from there. In a
    thread other than the main one no signals are seen, and the run goes on to its end.

    In a notebook, or wherever Python is interactive, a run takes one GPU unless
    `run={"devices": …}` says otherwise: from there Lightning cannot start a process for each.

    Args:
        recipe: A recipe's name, such as "coco-vits16" or "demo", or a whole configuration.
        data: Where the photographs are: a folder of images at any depth, several of them, tar
            shards, or the word "scenes" for synthetic ones. By default the recipe's own. Or the
            section's options as below, with these as `root`.
        folder: Where the run is written; by default runs/RECIPE. A folder that holds something
            else is refused, never overwritten.
        options: All other options of `croc pretrain`, section by section: what the command line
            calls `--optim.epochs 3 --optim.batch 64` is `optim={"epochs": 3, "batch": 64}`.
            `init` and `resume` stand alone, as they do there.

    Returns:
        The `Run`. With several processes, every one of them returns it: a script that goes on
            to evaluate would do so in each, unless it trains with `run={"devices": 1}`.

    Raises:
        UserError: In one line, for what can be mended: an unknown recipe or option (with the
            nearest one), a value out of range, data that cannot be read.
        AskedToEnd: After a checkpoint, when SIGTERM or SIGUSR1 came, as clusters send them;
            `sys.exit(error.exit_code)` tells a scheduler to start the job again.

    Examples:
        >>> import croc
        >>> croc.pretrain("coco-vits16", data="photographs", optim={"epoch": 3})
        Traceback (most recent call last):
        croc.errors.UserError: there is no option optim.epoch; perhaps you meant optim.epochs

        A run of two steps on synthetic scenes:

        >>> short = {"stop_after_steps": 2, "report": False}
        >>> run = croc.pretrain("demo", folder="runs/short", data={"scenes": 48}, run=short)
        >>> [line["step"] for line in run.metrics()]
        [1, 2]
        >>> run.backbone().stride_px
        8
    """
    config, name = _recipe(recipe)
    if data is not None:
        options["data"] = data if isinstance(data, Mapping) else {"root": data}
    if folder is not None:
        options["folder"] = os.fspath(folder)
    config = _one_device_if_interactive(configure(config, options))
    from croc.train.loop import pretrain as train

    try:
        with torch.random.fork_rng(devices=[]):  # a run's seed is its own affair
            return Run(train(config, name))
    except AskedToEnd as error:
        if error.number == signal.SIGINT:
            raise KeyboardInterrupt(str(error)) from None
        raise


def _one_device_if_interactive(config: PretrainConfig) -> PretrainConfig:
    """By Lightning's own test, since it is Lightning that refuses more."""
    from lightning.fabric.utilities import imports

    if config.run.devices != "auto" or not imports._IS_INTERACTIVE:
        return config
    return dataclasses.replace(config, run=dataclasses.replace(config.run, devices=1))


def configure(config: PretrainConfig, options: Mapping[str, Any]) -> PretrainConfig:
    """A configuration with changes section by section; those of a section are made together."""
    for name in options:
        section, dot, field = name.partition(".")
        if dot:
            raise UserError(f"write {section}={{{field!r}: …}} for {name}")
    check_names(options, [*(field.name for field in dataclasses.fields(config)), *SHORT])
    changes: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        section = SHORT.get(name, name)
        given = {name: value} if name in SHORT else _section(name, value)
        changes.setdefault(section, {})
        for twice in changes[section].keys() & given.keys():
            raise UserError(f"{section}.{twice} is given twice")
        changes[section] |= given
    if "root" in changes.get("data", {}):
        changes["data"]["root"] = _roots(changes["data"]["root"])
    return dataclasses.replace(
        config,
        **{name: change(getattr(config, name), new, f"{name}.") for name, new in changes.items()},
    )


def _section(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{name} takes its options by their names: {name}={{…}}, not {value!r}")
    return dict(value)


def _recipe(recipe: str | PretrainConfig) -> tuple[PretrainConfig, str]:
    if isinstance(recipe, str):
        check_names([recipe], RECIPES, noun="recipe")
        return RECIPES[recipe](), recipe
    if type(recipe) not in METHODS.values():
        kinds = ", ".join(kind.__name__ for kind in METHODS.values())
        raise UserError(f"a {type(recipe).__name__} is no recipe: give its name, or one of {kinds}")
    return recipe, CUSTOM


def _roots(data: Roots) -> tuple[str, ...]:
    several = [data] if isinstance(data, str | os.PathLike) else data
    return tuple(os.fspath(root) for root in several)
