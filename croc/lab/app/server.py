"""The explorer's server: a page, its files, and a small JSON interface behind it."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from croc.errors import UserError
from croc.lab.app import asked as limits
from croc.lab.app.asked import Asked, read_asked, read_json
from croc.lab.app.explore import Explorer
from croc.lab.app.guard import Guard
from croc.lab.app.models import Model
from croc.lab.app.pictures import LONGER_PX, MOST_BYTES, MOST_MEGAPIXELS, Pictures
from croc.lab.app.refusal import Refusal
from croc.lab.app.uploads import MOST_JSON_BYTES, read_body, read_upload
from croc.lab.app.worker import Stale, Worker
from croc.lab.show.figures import PALETTE

HERE = Path(__file__).parent
WEB = HERE.parent / "web"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
SHARED = ("style.css", "theme.js")


class Server:
    """What the routes share; made once, closed when the server ends."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, self.pictures = models, Pictures()
        self.explorer, self.worker = Explorer(models), Worker()
        own = [path for path in sorted(HERE.iterdir()) if path.suffix in KINDS]
        # Read once: no request's path ever becomes a path of the disk.
        self.files = {path.name: path.read_bytes() for path in own}
        self.files |= {name: (WEB / name).read_bytes() for name in SHARED}

    def warm_up(self) -> None:
        """The first pass of a network takes longer than the next: it is made before anyone asks."""
        scene = self.pictures.scenes[0]
        half = scene.width // 2
        page = {"page": "warm-up", "picture": scene.id}
        page |= {"boxes": [[0, 0, half, half], [half, half, half, half]]}
        for number in range(len(self.models)):
            asked = read_asked(page | {"model": number}, self.models, self.pictures)
            self.worker.submit(None, partial(self.explorer.clusters, asked))

    def start(self) -> dict[str, Any]:
        return {
            "models": [_describe(model) for model in self.models],
            "pictures": [scene.describe() for scene in self.pictures.scenes],
            "palette": (PALETTE * 255).round().int().tolist(),
            "limits": {
                "box_px": limits.LEAST_BOX_PX,
                "k_start": limits.K_START,
                "sharpness": limits.SHARPNESS,
                "position_weight": limits.POSITION_WEIGHT,
                "tokens": limits.TOKENS,
                "bytes": MOST_BYTES,
                "megapixels": MOST_MEGAPIXELS,
                "longer_px": LONGER_PX,
            },
        }


def make_app(server: Server, port: int) -> Guard:
    routes = [
        Route("/", partial(_file, server, "page.html")),
        Route("/files/{name}", partial(_file, server, "")),
        Route("/api/start", partial(_start, server)),
        Route("/api/pictures/{id}", partial(_picture, server)),
        Route("/api/pictures", partial(_upload, server), methods=["POST"]),
        *(
            Route(f"/api/{name}", partial(_explore, server, name), methods=["POST"])
            for name in ("clusters", "trace", "similarity")
        ),
    ]
    handlers: dict[Any, Any] = {
        Refusal: _refused,
        UserError: _impossible,
        HTTPException: _http_error,
        Exception: _failed,
    }
    # Around all of it, so that no answer leaves without the guard's headers.
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


async def _file(server: Server, fixed: str, request: Request) -> Response:
    name: str = fixed or request.path_params["name"]
    content = server.files.get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, media_type=KINDS[Path(name).suffix])


async def _start(server: Server, request: Request) -> Response:
    return JSONResponse(server.start())


async def _picture(server: Server, request: Request) -> Response:
    return Response(server.pictures.get(request.path_params["id"]).jpeg, media_type="image/jpeg")


async def _upload(server: Server, request: Request) -> Response:
    data, name = await read_upload(request)
    # By the worker too: one decoding at a time bounds the memory that uploads can take.
    picture = await _answer(server, None, partial(server.pictures.add, data, name))
    return JSONResponse(picture.describe(), 201)


async def _explore(server: Server, name: str, request: Request) -> Response:
    page = read_json(await read_body(request, MOST_JSON_BYTES))
    asked: Asked = read_asked(page, server.models, server.pictures)
    work = partial(getattr(server.explorer, name), asked)
    try:
        return JSONResponse(await _answer(server, (asked.page, name, asked.model), work))
    except Stale:  # no error: the page has asked for something newer
        return JSONResponse({"stale": True})


async def _answer(server: Server, lane: Any, work: Callable[[], Any]) -> Any:
    return await asyncio.wrap_future(server.worker.submit(lane, work))


def _describe(model: Model) -> dict[str, Any]:
    defaults = limits.defaults(model.cluster)
    return {
        "name": model.name,
        "grid": model.grid,
        "view_px": model.view_px,
        "variant": model.cluster.variant,
        "defaults": defaults,
    }


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    # The rest of a refused body is not waited for.
    headers = {"Connection": "close"} if error.status == 413 else None
    return JSONResponse({"error": error.message}, error.status, headers)


async def _impossible(request: Request, error: Exception) -> Response:
    """A setting that does not fit the network, such as more clusters than there are tokens."""
    return JSONResponse({"error": str(error)}, 400)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "The server failed at that; it said why where it runs."}, 500)
