"""A run's folder: its configuration, checked against what is asked of it now."""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import typeguard

from croc.config import METHODS, PretrainConfig, RunConfig
from croc.errors import UserError
from croc.io import replacing

PAGE = "config.json"
PARTIAL = "config.json.partial"

# What may differ when a run is continued: how it is carried out, not what is learned.
FREE = {
    ("data", "root"),  # the data may move; a checkpoint knows how many images there were
    ("data", "workers"),
    ("data", "max_failed_share"),
    *(("run", field.name) for field in dataclasses.fields(RunConfig) if field.name != "seed"),
}


def write_config(folder: Path, config: PretrainConfig, recipe: str) -> None:
    """A page that is enough to start the run again, from its beginning to its end."""
    run = dataclasses.replace(config.run, stop_after_steps=None, resume="auto")
    whole = dataclasses.replace(config, run=run)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / PAGE) as partial:
        partial.write_text(json.dumps(config_page(whole, recipe), indent=2) + "\n")


def config_page(config: PretrainConfig, recipe: str) -> dict[str, Any]:
    return {"recipe": recipe, "method": _method(config), **dataclasses.asdict(config)}


def _method(config: PretrainConfig) -> str:
    return next(name for name, kind in METHODS.items() if type(config) is kind)


def read_config(path: Path) -> tuple[PretrainConfig, str]:
    """A run's configuration and its recipe's name."""
    try:
        page = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no configuration {path}; a run's folder has {PAGE}") from None
    except ValueError as error:
        raise UserError(f"{path} is no configuration of a CrOC run: {error}") from None
    return parse_config(page, str(path))


def parse_config(page: Any, source: str) -> tuple[PretrainConfig, str]:
    """The same from a page that was read, every value checked."""
    try:
        sections = {**page}
        recipe, method = sections.pop("recipe"), sections.pop("method", "croc")
        return _build(METHODS[method], sections, ""), str(recipe)
    except (ValueError, KeyError, TypeError, AttributeError, typeguard.TypeCheckError) as error:
        raise UserError(f"{source} is no configuration of a CrOC run: {error}") from None


def _build(kind: Any, page: Any, name: str) -> Any:
    """A dataclass from its fields, types checked, lists to the tuples they were.

    What is missing was not there when the page was written: its default is what was done then.
    """
    if not dataclasses.is_dataclass(kind):
        value = tuple(page) if isinstance(page, list) else page
        try:
            return typeguard.check_type(value, kind)
        except typeguard.TypeCheckError as error:
            raise ValueError(f"{name[1:]}: {error}") from None
    hints = typing.get_type_hints(kind)
    unknown = ", ".join(f"{name}.{field}"[1:] for field in sorted(page.keys() - hints.keys()))
    if unknown:
        raise ValueError(f"unknown: {unknown}")
    fields = {field: _build(hints[field], page[field], f"{name}.{field}") for field in page}
    return typing.cast(Any, kind)(**fields)


def open_run_folder(folder: Path, config: PretrainConfig) -> None:
    """Make sure the folder is this run's own, or free."""
    others = folder.exists() and (
        not folder.is_dir() or any(path.name != PARTIAL for path in folder.iterdir())
    )
    there = (folder / PAGE).exists()  # after the others, if another process makes it just now
    if config.run.resume == "never" and there:
        raise UserError(f"--resume never: {folder} holds a run; choose another --run.folder")
    if config.run.resume == "must" and not there:
        raise UserError(f"--resume must: {folder} holds no run to go on with; check --run.folder")
    if there:
        found, _ = read_config(folder / PAGE)
        if type(found) is not type(config):
            raise UserError(
                f"{folder} holds a run of {_method(found)}, not of {_method(config)}: choose "
                "another --run.folder"
            )
        changes = _differences(found, config)
        if changes:
            raise UserError(
                f"{folder} holds a run with other settings ({'; '.join(changes[:4])}): "
                "choose another --run.folder, or give the same settings to continue it"
            )
    elif others:
        raise UserError(f"{folder} exists and holds no run: choose another --run.folder")


def _differences(found: PretrainConfig, asked: PretrainConfig) -> list[str]:
    changes = []
    for section in dataclasses.fields(asked):
        old, new = getattr(found, section.name), getattr(asked, section.name)
        for field in dataclasses.fields(new):
            before, after = getattr(old, field.name), getattr(new, field.name)
            if before != after and (section.name, field.name) not in FREE:
                flag = f"--{section.name}.{field.name}".replace("_", "-")
                flag = flag.replace("--model.init", "--init")
                changes.append(f"{flag} was {before}, now {after}")
    return changes
