"""The kernels of a step, recorded once and from then on launched as one: a CUDA graph.

One by one, their launching takes the host nearly as long as their work takes the GPU, and then
whatever else the host does, such as loading, holds up the training.
"""

from collections import deque

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from croc.config import RunConfig
from croc.errors import UserError
from croc.method.build import Method
from croc.method.types import Canvases

WARM_UPS = 3
"""Steps that are launched kernel by kernel first: they compile, and fill the caches."""
STEPS_AHEAD = 2
"""Recorded steps that may wait in the GPU's queue; each holds a batch of images there."""


class Gradients:
    """The student's gradients for a batch, left in its parameters; returns the metrics."""

    def __init__(self, fabric: Fabric, method: Method, student: _FabricModule) -> None:
        self.fabric, self.method, self.student = fabric, method, student

    def __call__(self, canvases: Canvases) -> dict[str, Tensor]:
        return self.method.accumulate(self.fabric, self.student, canvases)


class RecordedGradients(Gradients):
    """The same, launched as one from the fourth step on; again so when the views' size changes.

    All that changes from step to step lies in tensors whose places do not change: parameters,
    centres, the temperature, and the batch, which is copied to where the first one was. Gradients
    and metrics lie in the recording's own memory, and the next step writes over them.
    """

    def __init__(self, fabric: Fabric, method: Method, student: _FabricModule) -> None:
        super().__init__(fabric, method, student)
        self._ends: deque[torch.cuda.Event] = deque()
        self.forget()

    def forget(self) -> None:
        """Begin anew: the memory of what was recorded goes back."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: dict[str, Tensor] = {}
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []
        self._launched, self._view_px = 0, self.method.views.size_px

    def __call__(self, canvases: Canvases) -> dict[str, Tensor]:
        if self._view_px != self.method.views.size_px:
            self.forget()
        if self._launched < WARM_UPS:
            self._launched += 1
            return super().__call__(canvases)
        if self._graph is None:
            self._graph = self._record(canvases)
        self._wait_for_room()
        for mine, given in zip(tensors_of(self._canvases), tensors_of(canvases), strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()
        self._ends.append(torch.cuda.Event())
        self._ends[-1].record()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return dict(self._metrics)

    def _record(self, canvases: Canvases) -> torch.cuda.CUDAGraph:
        """Nothing is computed here; the memory that a step needs is set aside for good."""
        self._canvases = canvases.copied()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._metrics = super().__call__(self._canvases)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"the step cannot be recorded ({reason}): pass --run.record False"
            ) from error
        parameters = self.method.student.parameters()
        self._gradients = [(p, p.grad) for p in parameters if p.grad is not None]
        return graph

    def _wait_for_room(self) -> None:
        """A launch takes the host no time, so that it would run ahead by any number of batches."""
        if len(self._ends) >= STEPS_AHEAD:
            self._ends.popleft().synchronize()


def make_gradients(
    fabric: Fabric, method: Method, student: _FabricModule, record: bool
) -> Gradients:
    return (RecordedGradients if record else Gradients)(fabric, method, student)


def records(run: RunConfig, fabric: Fabric, compiled: bool) -> bool:
    """Whether steps are recorded: on one GPU, since several wait for each other in a step."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and run.strategy == "ddp"
    if run.record == "auto":
        return alone and compiled
    if run.record and not alone:
        raise UserError("--run.record True is for one process on a GPU, no fsdp; leave it at auto")
    return run.record


def tensors_of(canvases: Canvases) -> tuple[Tensor, Tensor, Tensor]:
    return canvases.pixels, canvases.sizes, canvases.keys
