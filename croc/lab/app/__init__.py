"""`croc app`: local web pages that show the clusters of two crops, or label images."""

import contextlib
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from croc.config import at_least, parse
from croc.errors import UserError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class App:
    """Explore the clusters of two crops of an image, in a browser on this machine."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """A run folder, or two to compare."""
    weights: tuple[str, ...] = ()
    """In addition to or instead of a run: bundled weights, a file written by croc export,
    hf:USER/NAME, or random:NAME for an untrained timm ViT."""
    port: int = 8000
    """Port on 127.0.0.1; 0 picks a free one."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.runs) + len(self.weights) <= 2:
            raise UserError("pass one or two networks: croc app RUN [RUN2], or --weights NAME")


@dataclass(frozen=True)
class Label:
    """Label images in a browser on this machine: click patches, see the masks of all images,
    correct the worst, and export masks, a segmentation head and training data."""

    photos: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """A folder of images, searched recursively."""
    weights: str
    """The backbone, as for `croc evaluate`."""
    to: str | None = None
    """Output folder for labels, tokens and exports; by default labels/NAME, where NAME is the name
    of the image folder. Labels of the same images that are already in it are loaded."""
    image_px: Annotated[int, at_least(1)] = 448
    """Images are resized to a square of this side length."""
    port: int = 8000
    """Port on 127.0.0.1; 0 picks a free one."""


def run_command(arguments: list[str]) -> None:
    if arguments[:1] == ["label"]:
        label(arguments[1:])
    else:
        explore(arguments)


def explore(arguments: list[str]) -> None:
    """Load the networks, bind a local port, and serve until Ctrl-C."""
    options = parse(App, arguments, "croc app")
    require_server()
    from croc.lab.app.explorer import Explorer
    from croc.lab.show.look import look_at_run, look_at_weights

    with open_port(options.port) as listening:  # first: opening the networks may take a while
        looks = [look_at_run(Path(run)) for run in options.runs]
        server = Explorer([*looks, *map(look_at_weights, options.weights)])
        serve(server, listening, " and ".join(model.name for model in server.models))


def label(arguments: list[str]) -> None:
    """The same for the page on which images are labeled."""
    options = parse(Label, arguments, "croc app label")
    require_server()
    from croc.lab.app.label_server import LabelServer, open_segmenter

    folder = Path(options.photos).expanduser()
    to = Path(options.to or Path("labels") / folder.resolve().name).expanduser()
    with open_port(options.port) as listening:
        segmenter = open_segmenter(options.weights, options.image_px)
        server = LabelServer(folder, to, segmenter)
        count = f"{len(server.photos):,} photographs, labels in {to}"
        serve(server, listening, f"{segmenter.backbone.name}, {count}")


def require_server() -> None:
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError("this needs a web server: pip install 'croc[app]'")


def serve(server: Any, listening: socket.socket, title: str) -> None:
    port = listening.getsockname()[1]
    print(f"{title}: open http://{HOST}:{port} in a browser; press Ctrl-C to stop", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.listener().run(sockets=[listening])
    server.close()


def open_port(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UserError(f"port {port}: {reason}; choose another with --port") from None
