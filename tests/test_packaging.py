"""Wheel and sdist, built without network, and the wheel as it runs where it is installed."""

import os
import shutil
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import croc

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
