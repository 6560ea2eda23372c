from collections.abc import Iterator

import pytest

from tests.app.serving import Served, serving, tiny_model


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny_model("first"), tiny_model("second", seed=1)) as running:
        yield running
