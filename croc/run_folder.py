"""A run's folder: its configuration, checked against what is asked of it now."""

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from croc.config import CrocConfig
from croc.errors import UserError

# What may differ when a run is continued: how it is carried out, not what is learned.
FREE = {
    ("data", "workers"),
    ("data", "max_failed_share"),
    *(
        ("run", field.name)
        for field in dataclasses.fields(CrocConfig().run)
        if field.name != "seed"
    ),
}


def config_to_json(config: CrocConfig, recipe: str) -> str:
    """A page that is enough to start the run again."""
    return json.dumps({"recipe": recipe, **dataclasses.asdict(config)}, indent=2) + "\n"


def config_from_json(text: str, source: str) -> tuple[CrocConfig, str]:
    """The configuration and the recipe's name; `source` is named in errors."""
    try:
        page = json.loads(text)
        recipe = page.pop("recipe")
        return _build(CrocConfig, page), recipe
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{source} is no configuration of a CrOC run ({error})") from None


def _build(kind: Any, page: Any) -> Any:
    """A dataclass from its fields, lists to the tuples they were."""
    if not dataclasses.is_dataclass(kind):
        return tuple(page) if _is_tuple(kind) and isinstance(page, list) else page
    hints = typing.get_type_hints(kind)
    return typing.cast(Any, kind)(
        **{name: _build(hints[name], value) for name, value in page.items()}
    )


def _is_tuple(kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_is_tuple(part) for part in typing.get_args(kind))
    return typing.get_origin(kind) is tuple


def open_run_folder(folder: Path, config: CrocConfig) -> bool:
    """Make sure the folder is this run's own; whether it holds the run already."""
    page = folder / "config.json"
    if page.exists():
        found, _ = config_from_json(page.read_text(), str(page))
        changes = _differences(found, config)
        if changes:
            raise UserError(
                f"{folder} holds a run with other settings ({'; '.join(changes[:4])}): "
                "choose another --run.folder, or give the same settings to continue it"
            )
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and holds no run: choose another --run.folder")
    return False


def write_config(folder: Path, config: CrocConfig, recipe: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "config.json.partial"
    partial.write_text(config_to_json(config, recipe))
    partial.replace(folder / "config.json")


def _differences(found: CrocConfig, asked: CrocConfig) -> list[str]:
    changes = []
    for section in dataclasses.fields(asked):
        old, new = getattr(found, section.name), getattr(asked, section.name)
        for field in dataclasses.fields(new):
            before, after = getattr(old, field.name), getattr(new, field.name)
            if before != after and (section.name, field.name) not in FREE:
                flag = f"--{section.name}.{field.name}".replace("_", "-")
                changes.append(f"{flag} was {before}, now {after}")
    return changes
