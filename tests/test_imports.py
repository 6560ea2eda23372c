"""`import croc` and `croc --help` answer at once: nothing heavy is imported before it is needed."""

import subprocess
import sys
import time

import pytest

import croc

HEAVY = {
    *(
        "torch",
        "torchvision",
        "timm",
        "lightning_fabric",
        "numpy",
        "scipy",
        "faiss",
        "PIL",
        "matplotlib",
    ),
    *("tensorboard", "torchmetrics", "transformers", "onnx", "rich", "jaxtyping"),
}
SAY = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"


def imported(code: str) -> set[str]:
    """The top-level modules that some code imports in a process of its own."""
    whole = f"import sys\n{code}\n{SAY}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_import_croc_is_light():
    found = imported("import croc")
    assert "croc" in found
    assert not found & {*HEAVY, "tyro", "typeguard"}


@pytest.mark.parametrize("arguments", ["--help", "--version", "pretrain", "evaluate", "nonsense"])
def test_the_command_line_answers_without_heavy_imports(arguments: str):
    found = imported(f"from croc.cli import main\nmain({arguments.split()})")
    assert "tyro" in found
    assert not found & HEAVY


@pytest.mark.parametrize("arguments", ["pretrain demo --help", "evaluate linear --help"])
def test_so_does_the_help_of_a_command(arguments: str):
    ending = (
        f"from croc.cli import main\ntry:\n    main({arguments.split()})\nexcept SystemExit: ..."
    )
    assert not imported(ending) & (HEAVY - {"rich"})


def test_a_public_name_is_imported_when_it_is_asked_for():
    assert "torch" in imported("import croc\ncroc.load_backbone")
    assert "torch" not in imported("import croc\ncroc.UserError")


def test_every_public_name_is_there_and_listed():
    assert set(croc._HOMES) | {"__version__"} == set(croc.__all__)
    for name in croc.__all__:
        assert getattr(croc, name) is not None
        assert name in dir(croc)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        croc.nosuch  # noqa: B018


@pytest.mark.parametrize(
    ("command", "slowest_s"),
    [(["-c", "import croc"], 1.5), (["-m", "croc", "--help"], 1.0)],
    ids=["import", "help"],
)
def test_it_takes_no_time(command: list[str], slowest_s: float):
    """0.05 and 0.25 s on two idle cores; other tests may keep them busy."""

    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        return time.perf_counter() - started

    assert min(seconds() for _ in range(6)) < slowest_s
