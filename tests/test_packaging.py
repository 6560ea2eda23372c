"""Wheel and sdist, built without network, and the wheel as it runs where it is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import croc
from tests.lab.report.fakes import make_run

ROOT = Path(__file__).parent.parent
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


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment, which has CrOC's wheel and borrows the dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    call(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel_in(built), folder=folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


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


def test_the_sdist_can_be_tested_and_documented(built: Path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for name in (
        *("Makefile", "constraints.txt", "LICENSE", "CITATION.cff", "CHANGELOG.md", "mkdocs.yml"),
        *("tests/tiny.py", "tests/golden/losses.json", "dev/LOG.md", "docs/clusters.png"),
        *("docs/hooks.py", "docs/slurm.sh", "benchmarks/clustering.py", "croc/lab/web/charts.js"),
    ):
        assert name in names, name
    assert not [name for name in names if "__pycache__" in name or name.startswith(".")]


def test_the_installed_package_runs_and_finds_its_files(installed: Path, tmp_path: Path):
    """It, not the checkout, is imported; the report's scripts, the explorer's files and the bundled
    weights are there."""
    assert call(installed / "croc", "--version", folder=tmp_path) == f"croc {croc.__version__}\n"
    run = make_run(tmp_path / "run")
    call(installed / "croc", "show", "report", run, "--to", "page.html", folder=tmp_path)
    assert "function" in (tmp_path / "page.html").read_text()
    program = """
import croc, sys
from croc.lab.app import server
from croc.weights.open import shipped
assert croc.__file__.startswith(sys.prefix), croc.__file__
assert (server.HERE / "page.html").is_file() and (server.WEB / "theme.js").is_file()
print(shipped()["stand-in"].relative_to(sys.prefix).as_posix())
"""
    said = call(installed / "python", "-c", program, folder=tmp_path)
    assert said == "share/croc/weights/stand-in.safetensors\n"
