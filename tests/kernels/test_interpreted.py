"""The kernels' tests in Triton's interpreter, which must be on before Triton is imported: in
a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.interpreter import INTERPRETED

HERE = Path(__file__).parent
FILES = [
    *(HERE / f"test_{name}.py" for name in ("attention", "distill", "gelu", "views")),
    HERE.parent / "method" / "clustering" / "test_kernel.py",
]


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton comes with torch on Linux")
def test_in_the_interpreter() -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *map(str, FILES), *options]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
