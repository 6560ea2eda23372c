from tests.eval.conftest import run  # noqa: F401
