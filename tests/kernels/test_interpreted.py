"""The kernels' tests in Triton's interpreter, in a separate process because it must be enabled
before Triton is imported."""

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


@pytest.mark.skipif(INTERPRETED, reason="this is the separate process")
@pytest.mark.skipif(sys.platform != "linux", reason="torch includes Triton only on Linux")
def test_kernels_in_the_interpreter() -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *map(str, FILES), *options]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
