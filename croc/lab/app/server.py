"""The explorer's server: a page, its files, and a small JSON interface behind it."""

import io
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from croc.data.decode import decode_image
from croc.data.scenes import make_scene
from croc.lab.app import explorer
from croc.lab.app.explorer import LIMITS, Model, Picture, read_query
from croc.lab.app.local import LocalServer, read_body
from croc.lab.show.look import Look
from croc.plotting import PALETTE

SCENES = (10, 17, 14, 4, 1, 8)
"""Indices (of seed 7) of scenes whose objects are easy to tell apart."""
# As in croc.data.decode: no formats for which Pillow starts other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
MAX_BYTES, MAX_MEGAPIXELS, MAX_UPLOADS, MAX_JSON_BYTES = 32 << 20, 50, 8, 1 << 16
LONGER_PX, MIN_PX = 768, 32  # uploads are reduced: enough for small crops, and quick to crop


class Server(LocalServer):
    """What the routes share, and the routes."""

    def __init__(self, looks: Sequence[Look]) -> None:
        super().__init__("page.html")
        self.models = [Model(look) for look in looks]
        images = [make_scene(7, index, 384).image for index in SCENES]
        self.scenes = [to_picture(f"scene-{n}", f"scene {n + 1}", x) for n, x in enumerate(images)]
        self.pictures = {scene.id: scene for scene in self.scenes}  # then the last uploads

    def routes(self) -> Sequence[Route]:
        answers = {
            "clusters": explorer.find_clusters,
            "trace": explorer.trace_merging,
            "similarity": explorer.find_similar,
        }
        return [
            Route("/api/start", self.start),
            Route("/api/pictures/{id}", self.picture),
            Route("/api/pictures", self.upload, methods=["POST"]),
            *(
                Route(f"/api/{name}", partial(self.answer, find), methods=["POST"])
                for name, find in answers.items()
            ),
        ]

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
        data = await read_body(request, MAX_BYTES)
        # By the one thread: one decoding at a time bounds the memory that uploads take.
        picture = await self.run(partial(read_upload, data, request.query_params.get("name", "")))
        self.pictures[picture.id] = picture
        if len(self.pictures) > len(self.scenes) + MAX_UPLOADS:
            del self.pictures[list(self.pictures)[len(self.scenes)]]
        return JSONResponse(picture.about, 201)

    async def answer(self, find: Callable[..., dict[str, Any]], request: Request) -> Response:
        body = await read_body(request, MAX_JSON_BYTES)
        try:
            query = read_query(body, self.models, self.pictures)
        except KeyError:
            message = "That photograph is no longer available: upload it again."
            raise HTTPException(404, message) from None
        except Exception as error:
            raise HTTPException(400, f"Not a query: {str(error)[:80]}") from None
        return JSONResponse(await self.run(partial(find, query)))


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
