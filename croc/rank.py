"""Which process this is, by the launcher's environment: needs no torch, works before they talk."""

import os


def is_first_process() -> bool:
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
