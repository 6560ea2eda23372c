"""The explorer's server: a page, its files, and a small JSON interface behind it.

It answers only to pages that it gave to a browser on this machine. Another site's page may send
requests to localhost: its Origin is refused. Another name may be resolved to 127.0.0.1 (DNS
rebinding): its Host is refused. Nothing allows CORS.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from croc.errors import UserError
from croc.lab.app.models import Model
from croc.lab.app.pictures import MAX_BYTES, MAX_UPLOADS, find_picture, make_scenes, read_upload
from croc.lab.app.requests import LIMITS, default_settings, read_query
from croc.lab.app.worker import Explorer, Worker
from croc.plotting import PALETTE

HERE = Path(__file__).parent
WEB = HERE.parent / "web"
SHARED = ("style.css", "theme.js", "dom.js")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
MAX_JSON_BYTES = 1 << 16
MAX_CONNECTIONS = 64
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server:
    """What the routes share, and the routes."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, self.scenes = models, make_scenes()
        self.pictures = self.scenes.copy()  # then the last uploads
        self.explorer, self.worker = Explorer(models), Worker()
        paths = [path for path in HERE.iterdir() if path.suffix in TYPES]
        # Read once: the path of a request never becomes a path on disk.
        self.files = {path.name: path.read_bytes() for path in [*paths, *map(WEB.joinpath, SHARED)]}

    def listener(self, port: int) -> uvicorn.Server:
        routes = [
            Route("/", self.file),
            Route("/files/{name}", self.file),
            Route("/api/start", self.start),
            Route("/api/pictures/{id}", self.picture),
            Route("/api/pictures", self.upload, methods=["POST"]),
            *(
                Route(f"/api/{name}", partial(self.explore, name), methods=["POST"])
                for name in ("clusters", "trace", "similarity")
            ),
        ]
        handlers: dict[Any, Any] = dict.fromkeys((HTTPException, UserError, Exception), _failed)
        app = Starlette(routes=routes, exception_handlers=handlers)
        config = uvicorn.Config(
            partial(_guard, app, port),  # as a whole, so that every answer has the headers
            interface="asgi3",
            log_level="error",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        return uvicorn.Server(config)

    def warm_up(self) -> None:
        """The first pass of a network is slow: it is made before the page is opened."""
        scene = self.scenes["scene-0"]
        side = scene.width // 2
        boxes = [[0, 0, side, side], [side, side, side, side]]
        for number in range(len(self.models)):
            fields = {"page": "warm-up", "model": number, "picture": scene.id, "boxes": boxes}
            query = read_query(json.dumps(fields).encode(), self.models, self.pictures)
            self.worker.submit(None, partial(self.explorer.clusters, query))

    async def file(self, request: Request) -> Response:
        name: str = request.path_params.get("name", "page.html")
        if name not in self.files:
            raise HTTPException(404)
        return Response(self.files[name], media_type=TYPES[Path(name).suffix])

    async def start(self, request: Request) -> Response:
        models = [
            {
                "name": model.name,
                "grid": model.grid,
                "view_px": model.view_px,
                "variant": model.cluster.variant,
                "defaults": default_settings(model.cluster),
            }
            for model in self.models
        ]
        scenes = [scene.describe() for scene in self.scenes.values()]
        palette = (PALETTE * 255).round().int().tolist()
        answer = {"models": models, "pictures": scenes, "palette": palette, "limits": LIMITS}
        return JSONResponse(answer)

    async def picture(self, request: Request) -> Response:
        picture = find_picture(self.pictures, request.path_params["id"])
        return Response(picture.jpeg, media_type="image/jpeg")

    async def upload(self, request: Request) -> Response:
        """The body is the file; it is kept in memory and never written."""
        data = await _read_body(request, MAX_BYTES)
        work = partial(read_upload, data, request.query_params.get("name", ""))
        # By the worker: one decoding at a time bounds the memory that uploads take.
        picture = await asyncio.wrap_future(self.worker.submit(None, work))
        self.pictures[picture.id] = picture
        if len(self.pictures) > len(self.scenes) + MAX_UPLOADS:
            del self.pictures[list(self.pictures)[len(self.scenes)]]
        return JSONResponse(picture.describe(), 201)

    async def explore(self, name: str, request: Request) -> Response:
        body = await _read_body(request, MAX_JSON_BYTES)
        query = read_query(body, self.models, self.pictures)
        work = partial(getattr(self.explorer, name), query)
        future = self.worker.submit((query.page, name, query.model), work)
        try:
            return JSONResponse(await asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            return JSONResponse({"stale": True})  # the page has sent a newer query


async def _read_body(request: Request, limit: int) -> bytes:
    """The whole body; refused as soon as it is known to be too long, whatever its headers claim."""
    too_large = HTTPException(413, f"That is too large: {limit / (1 << 20):.3g} MB at most.")
    claimed = request.headers.get("content-length", "0")
    if not claimed.isdecimal() or int(claimed[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
    except ClientDisconnect:
        raise HTTPException(400, "The request was cut off.") from None
    return bytes(body)


async def _guard(app: ASGIApp, port: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses other hosts and origins, and adds the headers that isolate the page."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    if scope["type"] == "lifespan":
        await app(scope, receive, send)
        return
    headers, own = Headers(scope=scope), [f"127.0.0.1:{port}", f"localhost:{port}"]
    if port == 80:  # which browsers leave out
        own += ["127.0.0.1", "localhost"]
    host, origin = headers.get("host", "").lower(), headers.getlist("origin")
    if host not in own or len(headers.getlist("host")) != 1:
        app = JSONResponse({"error": "This server answers to localhost only."}, 421)
    elif scope["method"] not in ("GET", "HEAD") and origin != [f"http://{host}"]:
        app = JSONResponse({"error": "Only this server's own page may request that."}, 403)
    await app(scope, receive, send_with_headers)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        # The rest of a body that is too large is not read.
        headers = {"Connection": "close"} if error.status_code == 413 else error.headers
        return JSONResponse({"error": error.detail}, error.status_code, headers)
    if isinstance(error, UserError):  # such as more clusters than tokens
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"error": "The server failed; its terminal shows why."}, 500)
