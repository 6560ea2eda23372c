"""The explorer's server: a page, its files, and a small JSON interface behind it.

It answers only to pages that it gave to a browser on this machine. Another site's page may send
requests to localhost: its Origin is refused. Another name may be resolved to 127.0.0.1 (DNS
rebinding): its Host is refused. Nothing allows CORS.
"""

import asyncio
import io
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from croc.data import decode_image
from croc.data.scenes import make_scene
from croc.errors import UserError
from croc.io import cores
from croc.lab.app import explorer
from croc.lab.app.explorer import LIMITS, Model, Picture, read_query
from croc.lab.show.look import Look
from croc.plotting import PALETTE

HERE = Path(__file__).parent
WEB = HERE.parent / "web"
SHARED = ("style.css", "theme.js", "dom.js")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SCENES = (10, 17, 14, 4, 1, 8)
"""Indices (of seed 7) of scenes whose objects are easy to tell apart."""
# As in croc.data.decode: no formats for which Pillow starts other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
MAX_BYTES, MAX_MEGAPIXELS, MAX_UPLOADS, MAX_JSON_BYTES = 32 << 20, 50, 8, 1 << 16
LONGER_PX, MIN_PX = 768, 32  # uploads are reduced: enough for small crops, and quick to crop
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

    def __init__(self, looks: Sequence[Look]) -> None:
        self.models = [Model(look) for look in looks]
        images = [make_scene(7, index, 384).image for index in SCENES]
        self.scenes = [to_picture(f"scene-{n}", f"scene {n + 1}", x) for n, x in enumerate(images)]
        self.pictures = {scene.id: scene for scene in self.scenes}  # then the last uploads
        paths = [path for path in HERE.iterdir() if path.suffix[1:] in TYPES]
        # Read once: the path of a request never becomes a path on disk.
        self.files = {path.name: path.read_bytes() for path in [*paths, *map(WEB.joinpath, SHARED)]}
        # One thread answers in order. One core is left to browser and server: each of torch's
        # operations waits for all of its threads, so competing for cores would be slow.
        threads = max(1, min(8, cores() - 1))
        self.pool = ThreadPoolExecutor(1, "croc explorer", torch.set_num_threads, (threads,))

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def listener(self, port: int) -> uvicorn.Server:
        answers = {
            "clusters": explorer.find_clusters,
            "trace": explorer.trace_merging,
            "similarity": explorer.find_similar,
        }
        routes = [
            Route("/", self.file),
            Route("/files/{name}", self.file),
            Route("/api/start", self.start),
            Route("/api/pictures/{id}", self.picture),
            Route("/api/pictures", self.upload, methods=["POST"]),
            *(
                Route(f"/api/{name}", partial(self.answer, find), methods=["POST"])
                for name, find in answers.items()
            ),
        ]
        kinds = (HTTPException, UserError, ClientDisconnect, Exception)
        handlers: dict[Any, Any] = dict.fromkeys(kinds, _failed)
        app = Starlette(routes=routes, exception_handlers=handlers)
        config = uvicorn.Config(
            partial(_guard, app, port),  # as a whole, so that every answer has the headers
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
        name: str = request.path_params.get("name", "page.html")
        if name not in self.files:
            raise HTTPException(404)
        return Response(self.files[name], media_type=TYPES[name.rpartition(".")[2]])

    async def start(self, request: Request) -> Response:
        models = [
            {name: getattr(model, name) for name in ("name", "grid", "view_px", "defaults")}
            for model in self.models
        ]
        palette = (PALETTE * 255).round().int().tolist()
        answer = {"models": models, "pictures": [scene.about for scene in self.scenes]}
        return JSONResponse(answer | {"palette": palette, "limits": LIMITS | {"bytes": MAX_BYTES}})

    async def picture(self, request: Request) -> Response:
        if request.path_params["id"] not in self.pictures:
            raise HTTPException(404)
        jpeg = self.pictures[request.path_params["id"]].jpeg
        return Response(jpeg, media_type="image/jpeg")

    async def upload(self, request: Request) -> Response:
        """The body is the file; it is kept in memory and never written."""
        data = await _read_body(request, MAX_BYTES)
        # By the one thread: one decoding at a time bounds the memory that uploads take.
        picture = await self._run(partial(read_upload, data, request.query_params.get("name", "")))
        self.pictures[picture.id] = picture
        if len(self.pictures) > len(self.scenes) + MAX_UPLOADS:
            del self.pictures[list(self.pictures)[len(self.scenes)]]
        return JSONResponse(picture.about, 201)

    async def answer(self, find: Callable[..., dict[str, Any]], request: Request) -> Response:
        body = await _read_body(request, MAX_JSON_BYTES)
        try:
            query = read_query(body, self.models, self.pictures)
        except KeyError:
            message = "That photograph is no longer available: upload it again."
            raise HTTPException(404, message) from None
        except Exception as error:
            raise HTTPException(400, f"Not a query: {str(error)[:80]}") from None
        return JSONResponse(await self._run(partial(find, query)))

    async def _run(self, work: Callable[[], Any]) -> Any:
        inference = torch.inference_mode()(work)
        return await asyncio.get_running_loop().run_in_executor(self.pool, inference)


def to_picture(identity: str, name: str, pixels: np.ndarray) -> Picture:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=93, subsampling=0)
    return Picture(identity, name, pixels, file.getvalue())


def read_upload(data: bytes, name: str) -> Picture:
    """A picture or an HTTPException, whatever the bytes are; the size in the header is checked
    before any pixel is decoded. The name is only shown, without letters that hide text."""
    too_large = HTTPException(413, f"That picture has more than {MAX_MEGAPIXELS} megapixels.")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_MEGAPIXELS * 1_000_000:
                raise too_large
        pixels = decode_image(data, LONGER_PX)
    except (HTTPException, Image.DecompressionBombError):
        raise too_large from None
    except Exception:  # on broken files Pillow raises nearly every type there is
        raise HTTPException(415, "That file cannot be read as a picture.") from None
    if min(pixels.shape[:2]) < MIN_PX:
        raise HTTPException(422, f"That picture is too small or narrow: {MIN_PX} px at least.")
    shown = "".join(letter for letter in name if letter.isprintable()).strip()
    return to_picture(secrets.token_hex(8), shown[:80] or "photograph", pixels)


async def _read_body(request: Request, limit: int) -> bytes:
    """The whole body; refused as soon as it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"That is too large: {limit / (1 << 20):.3g} MB at most.")
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
    headers = Headers(scope=scope)
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        app = JSONResponse({"error": "This server answers to localhost only."}, 421)
    elif scope["method"] not in ("GET", "HEAD") and origin != f"http://{host}":
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
