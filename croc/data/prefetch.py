"""Batches on the GPU, each copied there while the step before its own is computed."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import torch

from croc.method.types import Canvases

Item = TypeVar("Item")


def prefetch(
    batches: Generator[Canvases, None, None], device: torch.device
) -> Generator[Canvases, None, None]:
    """The same batches on the device; nothing here waits for its computations.

    A batch's own memory is read no more once the next but one has been asked for, or this has
    been closed.
    """
    stream = torch.cuda.Stream(device)
    try:
        with closing(batches):
            for sent in one_ahead(_send(canvases, stream) for canvases in batches):
                yield _received(sent, torch.cuda.current_stream(device))
                sent.arrived.synchronize()  # it has long: it was sent before the last step
    finally:
        stream.synchronize()


@dataclass(frozen=True)
class _Sent:
    canvases: Canvases
    arrived: torch.cuda.Event


def _send(canvases: Canvases, stream: torch.cuda.Stream) -> _Sent:
    with torch.cuda.stream(stream):
        on_device = canvases.to(stream.device)
        arrived = torch.cuda.Event()
        arrived.record(stream)
        return _Sent(on_device, arrived)


def _received(sent: _Sent, stream: torch.cuda.Stream) -> Canvases:
    """For use on `stream`, which waits, and until whose use is over the memory is not reused."""
    stream.wait_event(sent.arrived)
    for tensor in (sent.canvases.pixels, sent.canvases.sizes, sent.canvases.keys):
        tensor.record_stream(stream)
    return sent.canvases


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each given away once the one after it is there or has failed."""
    held: list[Item] = []
    try:
        for item in items:
            yield from held
            held = [item]
    except Exception:
        yield from held  # what came before the failure is good
        raise
    yield from held
