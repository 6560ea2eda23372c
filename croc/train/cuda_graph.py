"""The kernels of a step, recorded once and then launched together as a CUDA graph.

Launched one by one they keep the host busy nearly as long as the GPU, and then whatever else the
host does, such as loading, delays the training.
"""

from collections import deque

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor, nn

from croc.config import RunConfig
from croc.errors import UserError
from croc.method.build import Method
from croc.method.types import Canvases

WARM_UPS = 3
"""Steps that run eagerly first: they compile, and fill the caches."""
STEPS_AHEAD = 2
"""Graph launches that may be queued on the GPU; each keeps a batch of images there."""


class Gradients:
    """The student's gradients for a batch, left in its parameters; returns the metrics."""

    def __init__(self, fabric: Fabric, method: Method, student: _FabricModule) -> None:
        self.fabric, self.method, self.student = fabric, method, student

    def __call__(self, canvases: Canvases) -> dict[str, Tensor]:
        return self.method.compute_gradients(self.fabric, self.student, canvases)


class RecordedGradients(Gradients):
    """The same as a CUDA graph from the fourth step on, recorded again if the views' size changes.

    Everything that changes from step to step is in tensors with fixed addresses: parameters,
    centers, the temperature, and the batch, which is copied to where the first one was. Gradients
    and metrics are in the graph's own memory, which the next step overwrites.
    """

    def __init__(self, fabric: Fabric, method: Method, student: _FabricModule) -> None:
        super().__init__(fabric, method, student)
        self._ends: deque[torch.cuda.Event] = deque()
        self.forget()

    def forget(self) -> None:
        """Drop the graph and release its memory."""
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
        for name in ("pixels", "sizes", "keys"):
            getattr(self._canvases, name).copy_(getattr(canvases, name), non_blocking=True)
        self._graph.replay()
        self._ends.append(torch.cuda.Event())
        self._ends[-1].record()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return dict(self._metrics)

    def _record(self, canvases: Canvases) -> torch.cuda.CUDAGraph:
        """Computes nothing; the memory that a step needs is reserved for good."""
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
        """A launch costs the host nothing, so that it would run ahead by any number of batches."""
        if len(self._ends) >= STEPS_AHEAD:
            self._ends.popleft().synchronize()


def make_gradients(
    fabric: Fabric, method: Method, student: _FabricModule, record: bool
) -> Gradients:
    return (RecordedGradients if record else Gradients)(fabric, method, student)


def records(run: RunConfig, fabric: Fabric, compiled: bool) -> bool:
    """Whether steps are recorded: only on one GPU, since several wait for each other in a step."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and run.strategy == "ddp"
    if run.record == "auto":
        return alone and compiled
    if run.record and not alone:
        raise UserError("--run.record True is for one process on a GPU, no fsdp; leave it at auto")
    return run.record
