"""Where to compute: device, precision and number of reading processes."""

from dataclasses import dataclass
from typing import Any

import torch

from croc.config import DataConfig
from croc.data.loader import worker_count
from croc.errors import UserError
from croc.weights.backbones import fast_precision


@dataclass(frozen=True)
class Machine:
    device: torch.device = torch.device("cpu")  # noqa: RUF009, immutable
    precision: torch.dtype = torch.float32
    """Precision of the backbone."""
    workers: int = 0
    """Processes that read images; 0 reads them in this one."""

    @property
    def precision_name(self) -> str:
        return str(self.precision).partition(".")[2]


def find_machine(options: Any, fast: bool = False) -> Machine:
    """From options that have device, precision and workers. Scores should not depend on the
    machine, so that on CPUs the default is float32, unless `fast`."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; pass --device cpu")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(available if options.device == "auto" else options.device)
    precision = fast_precision(device) if fast or device.type == "cuda" else torch.float32
    if options.precision != "auto":
        precision = getattr(torch, options.precision)
    return Machine(device, precision, worker_count(DataConfig(workers=options.workers)))
