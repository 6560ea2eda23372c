"""`croc app`: open the networks, bind a port of this machine, serve until Ctrl-C."""

import contextlib
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro

from croc.arguments import parse
from croc.errors import UserError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class App:
    """Explore the clusters of two crops of a photograph, in a browser on this machine."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """A run folder, or two to compare."""
    weights: tuple[str, ...] = ()
    """In addition to or instead of a run: bundled weights, a file written by croc export, or
    random:NAME for an untrained timm ViT."""
    checkpoint: tuple[int, ...] = ()
    """Checkpoint steps of a single run: two are compared with each other, one with the last."""
    port: int = 8000
    """Port on 127.0.0.1; 0 picks a free one."""


def run_command(arguments: list[str]) -> None:
    options = parse(App, arguments, "croc app")
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError("the explorer needs a web server: pip install 'croc[app]'")
    from croc.lab.app.models import open_models
    from croc.lab.app.server import Server

    with open_port(options.port) as listening:  # first: opening the networks may take a while
        port = listening.getsockname()[1]
        server = Server(open_models(options.runs, options.weights, options.checkpoint))
        server.warm_up()
        names = " and ".join(model.name for model in server.models)
        print(f"{names}: open http://{HOST}:{port} in a browser; Ctrl-C ends it", flush=True)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.listener(port).run(sockets=[listening])
        finally:
            server.worker.close()


def open_port(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be in 0 … 65535: {port}")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UserError(f"port {port}: {reason}; choose another with --port") from None
