"""Which process this is, by the launcher's environment: needs no torch, works before they talk."""

import os

NAMES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Of torchrun, srun, and Lightning's own launcher."""


def process_number() -> str:
    return next((os.environ[name] for name in NAMES if name in os.environ), "0")


def is_first_process() -> bool:
    return process_number() == "0"
