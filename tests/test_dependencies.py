"""Every package that is imported is declared, and all that an installation brings is pinned."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().split()
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines]
    assert None not in pairs
    return {canonicalize_name(pair[1]): Version(pair[2]) for pair in pairs if pair}


def test_all_that_is_installed_is_pinned_in_the_ranges_that_the_package_names():
    asked = [
        Requirement(line)
        for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
        for line in lines
    ]
    for one in asked:
        assert pins()[canonicalize_name(one.name)] in one.specifier, one
    for package in distributions():
        if canonicalize_name(package.name) in pins():
            for one in map(Requirement, package.requires or []):
                if not one.marker or one.marker.evaluate({"extra": ""}):
                    assert canonicalize_name(one.name) in {*pins(), "setuptools"}, package.name


BROUGHT = {"triton": "torch", "onnx_ir": "onnxscript"}
"""Packages that come with one that is declared, and belong to it."""
DEVELOPERS = {"dev", "docs"}


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - {"croc", *sys.stdlib_module_names}


def test_what_the_package_imports_it_declares():
    """By its dependencies or an extra for users: the tests' own environment has more."""
    extras = PROJECT["optional-dependencies"].items()
    users = [PROJECT["dependencies"], *(lines for name, lines in extras if name not in DEVELOPERS)]
    declared = {canonicalize_name(Requirement(line).name) for part in users for line in part}
    owners = packages_distributions()
    missing = {
        (name, str(path.relative_to(ROOT)))
        for path in (ROOT / "croc").rglob("*.py")
        for name in imported(path)
        if not declared
        & {canonicalize_name(each) for each in owners.get(BROUGHT.get(name, name), [])}
    }
    assert missing == set()
