"""`croc app`: open the networks, take a port of this machine, serve until Ctrl-C."""

import errno
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import tyro

from croc.arguments import parse
from croc.errors import UserError

if TYPE_CHECKING:  # the extra may not be installed, and torch takes its time
    import uvicorn

    from croc.lab.app.models import Model
    from croc.lab.app.server import Server

HOST = "127.0.0.1"
NEEDED = ("starlette", "uvicorn", "python_multipart")
MOST_CONNECTIONS = 64
GRACE_SECONDS = 2


@dataclass(frozen=True)
class App:
    """Explore the clusters of two crops of a photograph, in a browser on this machine."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """One run's folder, or two to compare."""
    weights: tuple[str, ...] = ()
    """Beside or instead of a run: shipped weights, a file of croc export, or random:NAME for an
    untrained ViT of timm's."""
    checkpoint: tuple[int, ...] = ()
    """Steps of the one run: two are compared with each other, one with the run's last."""
    port: int = 8000
    """Of 127.0.0.1; 0 for any that is free."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port must be in 0 … 65535: {self.port}")


def run_command(arguments: list[str]) -> None:
    asked = parse(App, arguments, "croc app")
    if any(find_spec(name) is None for name in NEEDED):
        raise UserError("the explorer needs a web server: pip install 'croc[app]'")
    from croc.lab.app.models import open_models

    with open_port(asked.port) as listening:
        serve(open_models(asked.runs, asked.weights, asked.checkpoint), listening)


def open_port(port: int) -> socket.socket:
    """Taken before the networks are opened, which may take a while."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still fading may be taken again at once.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(MOST_CONNECTIONS)  # who comes before the server is ready waits for it
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use: choose another with --port") from None
        raise UserError(f"port {port} cannot be taken: {error.strerror}") from None
    return listening


def serve(models: "list[Model]", listening: socket.socket) -> None:
    from croc.lab.app.server import Server

    port = listening.getsockname()[1]
    server = Server(models)
    server.warm_up()
    names = " and ".join(model.name for model in models)
    print(f"{names}: open http://{HOST}:{port} in a browser; Ctrl-C ends it", flush=True)
    try:
        make_listener(server, port).run(sockets=[listening])
    except KeyboardInterrupt:  # the usual end, not a failure
        pass
    finally:
        server.worker.close()


def make_listener(server: "Server", port: int) -> "uvicorn.Server":
    import uvicorn

    from croc.lab.app.server import make_app

    config = uvicorn.Config(
        make_app(server, port),
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)
