"""Every package that an installation brings is pinned."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().split()
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines]
    assert None not in pairs
    return {canonicalize_name(pair[1]): Version(pair[2]) for pair in pairs if pair}


def asked() -> list[Requirement]:
    """Directly: by the package and by each of its extras."""
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for part in (PROJECT["dependencies"], *extras) for line in part]


def closure(wanted: list[Requirement]) -> set[str]:
    """With all that these need in turn here, as they are installed."""
    found: set[tuple[str, str]] = set()
    waiting = [(one.name, extra) for one in wanted for extra in ("", *one.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name := canonicalize_name(name), extra) in found:
            continue
        try:
            needs = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue  # another platform's
        found.add((name, extra))
        needs = [one for one in needs if not one.marker or one.marker.evaluate({"extra": extra})]
        waiting += [(one.name, more) for one in needs for more in ("", *one.extras)]
    return {name for name, _ in found} - {"pip", "setuptools"}


def test_all_that_is_installed_is_pinned():
    needed = closure(asked())
    assert len(needed) > 60
    assert needed - pins().keys() == set()


def test_pins_are_in_the_ranges_that_the_package_names():
    for one in asked():
        assert pins()[canonicalize_name(one.name)] in one.specifier, one
