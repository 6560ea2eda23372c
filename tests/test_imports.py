"""`import croc` and `croc --help` answer at once: nothing heavy is imported before it is needed."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "arguments",
    ["--help", "evaluate", "nonsense", "pretrain demo --help", "evaluate linear --help"],
)
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
