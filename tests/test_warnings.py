"""A warning that our code causes fails a test; one of another package does not."""

import pytest

WARN = "import warnings; warnings.warn('careful')"


def test_only_warnings_of_our_code_are_errors():
    with pytest.raises(UserWarning, match="careful"):
        exec(WARN, {"__name__": "croc.method.losses"})
    with pytest.warns(UserWarning, match="careful"):
        exec(WARN, {"__name__": "torch.nn"})
