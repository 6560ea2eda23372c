"""Imports are lazy and point one way; dependencies are declared; the wheel is complete."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import croc

_HEAVY = """torch torchvision timm lightning_fabric numpy scipy faiss PIL matplotlib tensorboard
torchmetrics transformers onnx rich jaxtyping"""
HEAVY = set(_HEAVY.split())
PRINT = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"


def imported(code: str) -> set[str]:
    """The top-level modules that the code imports in a new process."""
    script = f"import sys\n{code}\n{PRINT}"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_public_names_are_imported_lazily():
    assert not imported("import croc\ncroc.UserError") & {*HEAVY, "tyro", "typeguard"}
    assert "torch" in imported("import croc\ncroc.load_backbone")


@pytest.mark.parametrize("arguments", ["--help", "nonsense", "evaluate linear --help"])
def test_help_and_usage_errors_import_nothing_heavy(arguments: str):
    code = f"from croc.cli import main\ntry:\n    main({arguments.split()})\nexcept SystemExit: ..."
    assert not imported(code) & (HEAVY - ({"rich"} if " " in arguments else set()))


def test_public_names_exist_and_are_listed():
    assert set(croc._HOMES) | {"__version__"} == set(croc.__all__)
    for name in croc.__all__:
        assert getattr(croc, name) is not None
        assert name in dir(croc)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        croc.nosuch  # noqa: B018


PACKAGE = Path(croc.__file__).parent
MODULES = {path.stem for path in PACKAGE.iterdir()}
BASE = {"__init__", "errors", "io", "signals", "tables", "plotting", "config", "fabric", "results"}
BELOW = {
    "method": {"kernels"},
    "kernels": {"method"},
    "data": {"method"},
    "weights": {"method", "data"},
    "train": {"method", "kernels", "data", "weights", "recipes"},
    "eval": {"method", "data", "weights"},
    "segmentation": {"method", "data", "weights", "eval"},
}


def names_imported_by(file: Path) -> set[str]:
    """Dotted names of all imports in a file, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_packages_import_only_what_is_below_them():
    allowed = BELOW | {name: set() for name in BASE - {"__init__", "config"}}
    wrong = []
    for package, below in allowed.items():
        for file in (*PACKAGE.glob(f"{package}.py"), *(PACKAGE / package).rglob("*.py")):
            names = {x.split(".")[1] for x in names_imported_by(file) if x.startswith("croc.")}
            above = names & MODULES - below - BASE - {package}
            wrong += [f"{file.relative_to(PACKAGE.parent)} imports croc.{name}" for name in above]
    assert not wrong


ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(*parts: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(x.name): x for lines in parts for x in map(Requirement, lines)}


BROUGHT = {"triton": "torch", "onnx_ir": "onnxscript"}
"""Packages that are installed with a declared one and belong to it."""


def test_imports_of_the_package_are_declared():
    """As dependencies or extras for users; the environment of the tests has more packages."""
    extras = (lines for name, lines in EXTRAS.items() if name not in {"dev", "docs"})
    declared = requirements(PROJECT["dependencies"], *extras)
    owners = packages_distributions()
    for path in PACKAGE.rglob("*.py"):
        for name in {name.split(".")[0] for name in names_imported_by(path)}:
            if name not in {"croc", *sys.stdlib_module_names}:
                names = map(canonicalize_name, owners.get(BROUGHT.get(name, name), []))
                assert declared.keys() & set(names), f"{path} imports {name}"


COPIED = ("croc", "tests", "docs", "dev", "benchmarks", "examples")


def test_wheel_contains_exactly_the_package(tmp_path: Path):
    """Built from a copy with a small file in place of the bundled weights."""
    copy = tmp_path / "copy"
    for name in filter(lambda name: (ROOT / name).is_dir(), COPIED):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(path, copy)
    (copy / "weights").mkdir()
    (copy / "weights" / "stand-in.safetensors").write_bytes(b"")
    (copy / "weights" / "stand-in.md").write_text("# stand-in\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "build", "--no-isolation"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with ZipFile(next((copy / "dist").glob("*.whl"))) as file:
        contents = set(file.namelist())
        metadata = next(name for name in contents if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(file.read(metadata))
    names = {name for name in contents if ".dist-info/" not in name}
    package = {p.relative_to(copy).as_posix() for p in (copy / "croc").rglob("*") if p.is_file()}
    shipped = {name for name in names if ".data/data/share/croc/weights/" in name}
    assert {Path(name).name for name in shipped} == {"stand-in.safetensors", "stand-in.md"}
    assert names - shipped == package
    assert fields["Version"] == croc.__version__
    assert f"version: {croc.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{croc.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
