"""How a run is carried out."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from croc.config.checks import require, require_least


@dataclass(frozen=True)
class RunConfig:
    """How the run is carried out; but for seed and precision, it changes nothing in the result."""

    folder: str | None = None
    """Where the run is written; by default runs/RECIPE. A run found there is continued."""
    resume: Annotated[Literal["auto", "never", "must"], tyro.conf.arg(prefix_name=False)] = "auto"
    """Whether a run found in the folder is continued: if there is one; not, and it is refused; or
    it must be there."""
    seed: int = 0
    """Of the weights, the order of the samples and all that is random about them."""
    stop_after_steps: int | None = None
    """Stop, with a checkpoint, after this many steps of the schedule."""
    log_every_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every_steps: int = 500
    """Steps between two checkpoints; the last two are kept."""
    keep_every_steps: int | None = None
    """Checkpoints at multiples of this are kept for good."""
    report: bool = True
    """Measure gauges, draw clusters and write report.html at each checkpoint."""
    max_skipped: int = 10
    """Steps without a finite gradient are skipped; so many in a row, when metrics are logged, end
    the run."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """What to compute on."""
    devices: int | Literal["auto"] = "auto"
    """Processes a node; auto is every GPU, or one process on the CPU."""
    nodes: int = 1
    """Number of machines."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """What each process holds: the networks whole, or a share of them (FSDP), for networks that one
    GPU cannot hold. A run may go on with the other."""
    timeout_s: float = 600.0
    """Seconds that a process waits for the others before it gives up."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 autocast on a GPU and float32 on the CPU."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile; auto is on a GPU only."""
    record: bool | Literal["auto"] = "auto"
    """Launch a step's kernels as one (a CUDA graph); auto is on one GPU, where compiled."""
    kernels: bool = True
    """Our own kernels on a GPU; without them PyTorch does the same, slower."""
    micro_batch: int | None = None
    """Images of a process that pass the networks at once, to save memory: the result is the
    same. By default 16 on the CPU; all on a GPU, in `released` and with `sinkhorn`."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, f"--run.seed must be in 0 … 2³¹: {self.seed}")
        require(self.timeout_s > 0, f"--run.timeout-s must be positive: {self.timeout_s}")
        require(
            self.folder is None or ("\0" not in self.folder and self.folder != ""),
            "--run.folder is no path",
        )
        intervals = ("log_every_steps", "checkpoint_every_steps", "keep_every_steps")
        require_least(self, "run", 1, *intervals)
        require_least(
            self, "run", 1, "nodes", "devices", "micro_batch", "stop_after_steps", "max_skipped"
        )
