"""What the tests of the API share."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import croc

RANDOM = "random:vit_tiny_patch16_224"


def refused(match: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Past the tests' own check of types and shapes, which nobody else has."""
    call = inspect.unwrap(call) if inspect.isfunction(call) else call
    with pytest.raises(croc.UserError, match=match) as found:
        call(*arguments, **options)
    assert "\n" not in str(found.value)
