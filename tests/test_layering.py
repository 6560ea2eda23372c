"""Imports point one way: each package imports only what is below it, and nothing imports lab."""

import ast
from pathlib import Path

import croc

ROOT = Path(croc.__file__).parent
BASE = {"__init__", "errors", "io", "signals", "tables", "plotting", "config"}
BELOW = {
    "method": {"kernels"},
    "kernels": {"method"},
    "data": {"method"},
    "weights": {"method", "data"},
    "train": {"method", "kernels", "data", "weights", "recipes"},
    "eval": {"method", "data", "weights"},
    "segmentation": {"method", "data", "weights", "eval"},
}


def imported_packages(file: Path) -> set[str]:
    """Of croc, by the names of its top-level packages and modules."""
    packages = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "croc":
            parts = (node.module or "").split(".")
            packages |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            packages |= {n.name.split(".")[1] for n in node.names if n.name.startswith("croc.")}
    return {name if (ROOT / name).exists() or (ROOT / f"{name}.py").exists() else "__init__"
            for name in packages}  # fmt: skip


def test_every_package_imports_only_what_is_below_it():
    wrong = []
    for package, below in BELOW.items():
        for file in (ROOT / package).rglob("*.py"):
            above = imported_packages(file) - below - BASE - {package}
            wrong += [f"{file.relative_to(ROOT.parent)} imports croc.{name}" for name in above]
    assert not wrong


def test_the_base_imports_no_package():
    for name in BASE - {"__init__", "config"}:
        assert imported_packages(ROOT / f"{name}.py") <= BASE
