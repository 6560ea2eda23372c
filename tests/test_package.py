"""What is imported, declared and packed: nothing heavy early, one direction, all of it."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from functools import cache
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import croc

_HEAVY = """torch torchvision timm lightning_fabric numpy scipy faiss PIL matplotlib tensorboard
torchmetrics transformers onnx rich jaxtyping"""
HEAVY = set(_HEAVY.split())
SAY = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"


def imported(code: str) -> set[str]:
    """The top-level modules that some code imports in a process of its own."""
    whole = f"import sys\n{code}\n{SAY}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_public_names_are_imported_when_they_are_asked_for():
    assert not imported("import croc\ncroc.UserError") & {*HEAVY, "tyro", "typeguard"}
    assert "torch" in imported("import croc\ncroc.load_backbone")


@pytest.mark.parametrize("arguments", ["--help", "nonsense", "evaluate linear --help"])
def test_the_command_line_answers_without_heavy_imports(arguments: str):
    code = f"from croc.cli import main\ntry:\n    main({arguments.split()})\nexcept SystemExit: ..."
    assert not imported(code) & (HEAVY - ({"rich"} if " " in arguments else set()))


def test_every_public_name_is_there_and_listed():
    assert set(croc._HOMES) | {"__version__"} == set(croc.__all__)
    for name in croc.__all__:
        assert getattr(croc, name) is not None
        assert name in dir(croc)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        croc.nosuch  # noqa: B018


PACKAGE = Path(croc.__file__).parent
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
    return {name if (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists() else "__init__"
            for name in packages}  # fmt: skip


def test_every_package_imports_only_what_is_below_it():
    wrong = []
    for package, below in BELOW.items():
        for file in (PACKAGE / package).rglob("*.py"):
            above = imported_packages(file) - below - BASE - {package}
            wrong += [f"{file.relative_to(PACKAGE.parent)} imports croc.{name}" for name in above]
    assert not wrong


def test_the_base_imports_no_package():
    for name in BASE - {"__init__", "config"}:
        assert imported_packages(PACKAGE / f"{name}.py") <= BASE


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


def names_imported_by(path: Path) -> set[str]:
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
        for name in names_imported_by(path)
        if not declared
        & {canonicalize_name(each) for each in owners.get(BROUGHT.get(name, name), [])}
    }
    assert missing == set()


TAKEN = ("croc", "tests", "docs", "dev", "benchmarks", "examples")


def call(*command: str | Path, folder: Path) -> str:
    """Its output, in an environment in which the checkout cannot be imported."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, made of a copy; for the bundled weights a stand-in that takes no room."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "copy"
    for name in filter(lambda name: (ROOT / name).is_dir(), TAKEN):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(path, copy)
    (copy / "weights").mkdir()
    (copy / "weights" / "stand-in.safetensors").write_bytes(b"")
    (copy / "weights" / "stand-in.md").write_text("# stand-in\n")
    call(sys.executable, "-m", "build", "--no-isolation", folder=copy)
    return copy / "dist"


def wheel_in(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(built: Path):
    copy = built.parent
    with ZipFile(wheel_in(built)) as file:
        every = set(file.namelist())
        metadata = next(name for name in every if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(file.read(metadata))
    names = {name for name in every if ".dist-info/" not in name}
    ours = {p.relative_to(copy).as_posix() for p in (copy / "croc").rglob("*") if p.is_file()}
    shipped = {name for name in names if ".data/data/share/croc/weights/" in name}
    assert {Path(name).name for name in shipped} == {"stand-in.safetensors", "stand-in.md"}
    assert names - shipped == ours
    assert "croc/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in every)
    assert fields["License-Expression"] == "MIT"
    assert fields["Version"] == croc.__version__
    assert f"version: {croc.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{croc.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
