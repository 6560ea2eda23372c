"""The explorer's server: a page, its files, and a small JSON interface behind it."""

import io
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from croc.data.decode import UndecodableImage, decode_image
from croc.data.scenes import make_scene
from croc.lab.app import explorer
from croc.lab.app.explorer import LIMITS, Model, Picture, Query, read_query
from croc.lab.app.local import LocalServer
from croc.lab.show.look import Look
from croc.plotting import PALETTE

SCENES = (10, 17, 14, 4, 1, 8)
"""Indices (of seed 7) of scenes whose objects are easy to tell apart."""
LONGER_PX, MIN_PX = 768, 32  # uploads are reduced: enough for small crops, and quick to crop


class Server(LocalServer):
    """What the routes share, and the routes."""

    def __init__(self, looks: Sequence[Look]) -> None:
        super().__init__("page.html")
        self.models = [Model(look) for look in looks]
        images = [make_scene(7, index, 384).image for index in SCENES]
        self.scenes = [to_picture(f"scene-{n}", f"scene {n + 1}", x) for n, x in enumerate(images)]
        self.pictures = {scene.id: scene for scene in self.scenes}  # then the uploads

    def routes(self) -> Sequence[Route]:
        return [
            Route("/api/start", self.start),
            Route("/api/pictures/{id}", self.picture),
            Route("/api/pictures", self.upload, methods=["POST"]),
            self.post("clusters", self.read, explorer.find_clusters),
            self.post("trace", self.read, explorer.trace_merging),
            self.post("similarity", self.read, explorer.find_similar),
        ]

    def read(self, content: Any) -> Query:
        return read_query(content, self.models, self.pictures)

    async def start(self, request: Request) -> Response:
        models = [
            {name: getattr(model, name) for name in ("name", "grid", "view_px", "defaults")}
            for model in self.models
        ]
        palette = (PALETTE * 255).round().int().tolist()
        answer = {"models": models, "pictures": [scene.about for scene in self.scenes]}
        return JSONResponse(answer | {"palette": palette, "limits": LIMITS})

    async def picture(self, request: Request) -> Response:
        if request.path_params["id"] not in self.pictures:
            raise HTTPException(404)
        jpeg = self.pictures[request.path_params["id"]].jpeg
        return Response(jpeg, media_type="image/jpeg")

    async def upload(self, request: Request) -> Response:
        """The body is the file; it is kept in memory and never written."""
        data, name = await request.body(), request.query_params.get("name", "")
        picture = await self.run(partial(read_upload, data, name))
        self.pictures[picture.id] = picture
        return JSONResponse(picture.about, 201)


def to_picture(identity: str, name: str, pixels: np.ndarray) -> Picture:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=93, subsampling=0)
    return Picture(identity, name, pixels, file.getvalue())


def read_upload(data: bytes, name: str) -> Picture:
    """A picture or an HTTPException. The name is only shown."""
    try:
        pixels = decode_image(data, LONGER_PX)
    except UndecodableImage:
        raise HTTPException(415, "That file cannot be read as a picture.") from None
    if min(pixels.shape[:2]) < MIN_PX:
        raise HTTPException(422, f"That picture is too small or narrow: {MIN_PX} px at least.")
    return to_picture(secrets.token_hex(8), name[:80] or "photograph", pixels)
