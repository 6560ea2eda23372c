from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def served() -> Iterator[Any]:
    from tests.lab.app.serving import serving, tiny_model

    with serving(tiny_model("first"), tiny_model("second", seed=1)) as running:
        yield running
