"""How functions are compiled: for the shapes that they are given, anew for others.

By default torch would take a second shape for a sign of many, and make code for any shape, which
is slower. A run has two at most, the early views and the later ones; a sweep may have many.
"""

from collections.abc import Callable
from typing import Any

import torch

MOST_VERSIONS = 64
"""Of one function; beyond, torch would go on without compiling, and say so only in a warning."""


def compiled(function: Callable[..., Any]) -> Any:
    torch._dynamo.config.recompile_limit = MOST_VERSIONS
    return torch.compile(function, dynamic=False)
