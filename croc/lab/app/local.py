"""The common part of `croc app`'s two servers: a page, its files, and who may send requests.

Only the server's own page in a browser on this machine may. Pages of other sites can send requests
to localhost: their Origin is refused. Other names can be resolved to 127.0.0.1 (DNS rebinding):
their Host is refused. Its port is not compared, since a tunnel may have another. CORS is never
allowed.
"""

import asyncio
import base64
import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from jaxtyping import UInt8
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from croc.errors import UserError
from croc.io import cores

HERE = Path(__file__).parent
WEB = HERE.parent / "web"
SHARED = ("style.css", "theme.js", "dom.js")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
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


class LocalServer:
    """A page at /, its files at /files/, and the routes of a subclass."""

    def __init__(self, page: str) -> None:
        self.page = page
        paths = [path for path in HERE.iterdir() if path.suffix[1:] in TYPES]
        # Read once: the path of a request never becomes a path on disk.
        self.files = {path.name: path.read_bytes() for path in [*paths, *map(WEB.joinpath, SHARED)]}
        # One thread answers in order. One core is left to browser and server: each of torch's
        # operations waits for all of its threads, so competing for cores would be slow.
        threads = max(1, min(8, cores() - 1))
        self.pool = ThreadPoolExecutor(1, "croc app", torch.set_num_threads, (threads,))

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def routes(self) -> Sequence[Route]:
        raise NotImplementedError

    def listener(self) -> uvicorn.Server:
        routes = [Route("/", self.file), Route("/files/{name}", self.file), *self.routes()]
        kinds = (HTTPException, UserError, ClientDisconnect, Exception)
        handlers: dict[Any, Any] = dict.fromkeys(kinds, _failed)
        app = Starlette(routes=routes, exception_handlers=handlers)
        config = uvicorn.Config(
            partial(_guard, app),  # as a whole, so that every answer has the headers
            interface="asgi3",
            log_level="error",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
        )
        return uvicorn.Server(config)

    async def file(self, request: Request) -> Response:
        name: str = request.path_params.get("name", self.page)
        if name not in self.files:
            raise HTTPException(404)
        return Response(self.files[name], media_type=TYPES[name.rpartition(".")[2]])

    def post(
        self,
        name: str,
        read: Callable[[Any], Any],
        find: Callable[[Any], Any],
        at_once: bool = False,
    ) -> Route:
        """Answer with what `find` returns for the query that `read` makes of the page's JSON:
        in the one thread of all answers, or at once."""

        async def answer(request: Request) -> Response:
            try:
                query = read(await request.json())
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise HTTPException(400, f"Not a query: {str(error)[:80]}") from None
            work = partial(find, query)
            return JSONResponse(work() if at_once else await self.run(work))

        return Route(f"/api/{name}", answer, methods=["POST"])

    async def run(self, work: Callable[[], Any]) -> Any:
        without_gradients = torch.no_grad()(work)
        return await asyncio.get_running_loop().run_in_executor(self.pool, without_gradients)


def to_jpeg(pixels: UInt8[np.ndarray, "h w 3"], **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def png_url(image: Image.Image, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1, **options)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


async def _guard(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse other hosts and origins, and add the headers that isolate the page."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    if scope["type"] == "lifespan":
        await app(scope, receive, send)
        return
    headers = Headers(scope=scope)
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    if not re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", host):
        app = JSONResponse({"error": "This server answers to localhost only."}, 421)
    elif scope["method"] not in ("GET", "HEAD") and origin != f"http://{host}":
        app = JSONResponse({"error": "Only this server's own page may request that."}, 403)
    await app(scope, receive, send_with_headers)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, UserError):  # such as more clusters than tokens
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"error": "The server failed; its terminal shows why."}, 500)
