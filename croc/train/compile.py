"""A faster step: parts of it are compiled, and its kernels are captured as a CUDA graph.

Launching kernels one by one keeps the host busy nearly as long as the GPU, so anything else that
the host does, such as loading, delays training. A captured graph is launched as a whole.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from croc.config import RunConfig
from croc.errors import UserError
from croc.fabric import Fabric
from croc.method.backbone import Backbone
from croc.method.croc import Croc, Network
from croc.method.heads import ImageHead, ProjectionHead
from croc.method.mae import Mae, MaeNetwork
from croc.method.types import Canvases

COMPILED: dict[type, tuple[str, ...]] = {
    Croc: ("make_views", "cluster_tokens", "weighted_total", "softness"),
    Network: ("pool", "distill_loss", "gram_distance"),
    Backbone: ("_embed", "_finish", "_forward_last", "_draw_drop_paths"),
    ImageHead: ("images",),
    ProjectionHead: ("images", "clusters"),
    Mae: ("make_views",),
    MaeNetwork: ("reconstruction_error",),
}
"""Functions that are compiled, besides the blocks; they can be timed separately."""
MAX_VERSIONS = 64
"""Compiled versions of one function; beyond this, torch stops compiling, with only a warning."""
WARM_UPS = 3
"""Steps that run eagerly first: they compile, and fill the caches."""
STEPS_AHEAD = 2
"""Number of graph launches that may be queued on the GPU; each holds a batch of images there."""


def compile_parts(method: Croc | Mae) -> None:
    """Compile once per shape: a run has at most two, those of the early and of the later views. By
    default, torch would compile for dynamic shapes at the second one, which is slower.
    """
    torch._dynamo.config.recompile_limit = MAX_VERSIONS
    parts: list[Any] = [method]
    for network in method.modules.values():
        for name, module in network.named_modules():
            parts.append(module)
            if re.search(r"\bblocks\.\d+$", name):  # all blocks share one compiled version
                module.compile(dynamic=False)
    for part in parts:
        for name in COMPILED.get(type(part), ()):
            setattr(part, name, torch.compile(getattr(part, name), dynamic=False))


class CudaGraph:
    """The gradients of a step, launched as a CUDA graph from the fourth step on; captured again if
    the views' size changes.

    Everything that changes from step to step is in tensors with fixed addresses: parameters,
    centers, the temperature, and the batch, which is copied into the first one's memory. Gradients
    and metrics are in the graph's own memory, which the next step overwrites.
    """

    def __init__(
        self, method: Croc | Mae, compute_gradients: Callable[[Canvases], dict[str, Tensor]]
    ) -> None:
        self._method, self._compute_gradients = method, compute_gradients
        self._ends: deque[torch.cuda.Event] = deque()
        self.forget()

    def forget(self) -> None:
        """Drop the graph and release its memory."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: dict[str, Tensor] = {}
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []
        self._eager_steps, self._view_px = 0, self._method.views_config.size_px

    def __call__(self, canvases: Canvases) -> dict[str, Tensor]:
        if self._view_px != self._method.views_config.size_px:
            self.forget()
        if self._eager_steps < WARM_UPS:
            self._eager_steps += 1
            return self._compute_gradients(canvases)
        if self._graph is None:
            self._graph = self._capture(canvases)
        if len(self._ends) >= STEPS_AHEAD:  # else the host could run ahead by any number of batches
            self._ends.popleft().synchronize()
        for name in ("pixels", "sizes", "sample_keys"):
            getattr(self._canvases, name).copy_(getattr(canvases, name), non_blocking=True)
        self._graph.replay()
        self._ends.append(torch.cuda.Event())
        self._ends[-1].record()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return dict(self._metrics)

    def _capture(self, canvases: Canvases) -> torch.cuda.CUDAGraph:
        """Computes nothing, but the memory that a step needs stays reserved."""
        self._canvases = canvases.copied()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._metrics = self._compute_gradients(self._canvases)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"cannot capture the step as a CUDA graph ({reason}): pass --run.cuda-graph False"
            ) from error
        parameters = self._method.student.parameters()
        self._gradients = [(p, p.grad) for p in parameters if p.grad is not None]
        return graph


def use_cuda_graph(run: RunConfig, fabric: Fabric, compiled: bool) -> bool:
    """Only on a single GPU, since several GPUs wait for each other within a step."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and run.strategy == "ddp"
    if run.cuda_graph == "auto":
        return alone and compiled
    if run.cuda_graph and not alone:
        raise UserError(
            "--run.cuda-graph True needs a single process on a GPU, without FSDP; use auto"
        )
    return run.cuda_graph
