"""`croc app`: two crops of an image, their joint clusters, the merging, similarities of patches.

The clusters are those of `method.croc.cluster_tokens` for the same boxes; nothing is augmented, so
the page shows what the user pointed at.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from croc.config import ClusterConfig
from croc.data.decode import UndecodableImage, decode_image, place_on_canvas
from croc.data.scenes import make_scene
from croc.lab.app.local import LocalServer, png_url, to_jpeg
from croc.lab.show.clusters import follow_colors
from croc.lab.show.look import Look, whole_view
from croc.method.clustering.join_split import softness
from croc.method.clustering.trace import trace_views
from croc.method.croc import cluster_tokens, saliency
from croc.method.photometric import normalize
from croc.method.randomness import sample_key
from croc.method.types import Tokens, Views
from croc.method.views import Crops, crop, patch_centers
from croc.plotting import PALETTE

SCENES = (10, 17, 14, 4, 1, 8)
"""Indices (of seed 7) of scenes whose objects are easy to tell apart."""
UPLOAD_PX, MIN_PX = 768, 32
"""Uploads are reduced to this longer side, which is enough for small crops and quick to crop; the
smallest side that is accepted."""
LIMITS: dict[str, Any] = {
    "box_px": 16,
    "k_start": (2, 24),
    "sharpness": (1.0, 200.0),
    "position_weight": (0.0, 8.0),
    "tokens": ("queries", "keys", "values", "last"),
}
"""Of the page's boxes and settings."""
CACHED = 24
"""Number of pairs of crops; the tokens of a pair take about 2 MB for a ViT-S."""
Box = tuple[int, int, int, int]
"""x, y, width and height in pixels of the photograph."""


class Model:
    """A network; methods without clusters get the paper's clustering."""

    def __init__(self, look: Look) -> None:
        self.name, self.backbone = look.title, look.backbone
        self.view_px = look.config.views.size_px
        self.grid = self.view_px // look.backbone.patch_px
        self.cluster = getattr(look.config, "cluster", ClusterConfig())
        names = ("tokens", "k_start", "sharpness", "position_weight")
        self.defaults: dict[str, Any] = {name: getattr(self.cluster, name) for name in names}
        if math.isinf(self.cluster.position_weight):
            self.defaults["position_weight"] = "inf"  # JSON has no such number


@dataclass(frozen=True, eq=False)
class Picture:
    """An image, and the file that the browser gets."""

    id: str
    name: str
    pixels: UInt8[np.ndarray, "h w 3"]
    jpeg: bytes

    @property
    def about(self) -> dict[str, Any]:
        height, width, _ = self.pixels.shape
        return {"id": self.id, "name": self.name, "width": width, "height": height}


@dataclass(frozen=True)
class Query:
    """Two boxes on a picture and the clustering's settings, for one of the models."""

    model: Model
    picture: Picture
    boxes: tuple[Box, Box]
    config: ClusterConfig
    seed: int
    head: int
    view: int
    patch: int


class Explorer(LocalServer):
    """The server of the page."""

    def __init__(self, looks: Sequence[Look]) -> None:
        super().__init__("page.html")
        self.models = [Model(look) for look in looks]
        images = [make_scene(7, index, 384).image for index in SCENES]
        self.scenes = [to_picture(f"scene-{n}", f"scene {n + 1}", x) for n, x in enumerate(images)]
        self.pictures = {scene.id: scene for scene in self.scenes}  # uploads are added

    def routes(self) -> Sequence[Route]:
        return [
            Route("/api/start", self.start),
            Route("/api/pictures/{id}", self.picture),
            Route("/api/pictures", self.upload, methods=["POST"]),
            self.post("clusters", self.read_query, find_clusters),
            self.post("trace", self.read_query, trace_merging),
            self.post("similarity", self.read_query, find_similar),
        ]

    async def start(self, request: Request) -> Response:
        models = [
            {name: getattr(model, name) for name in ("name", "grid", "view_px", "defaults")}
            for model in self.models
        ]
        palette = (PALETTE * 255).round().int().tolist()
        pictures = [scene.about for scene in self.scenes]
        content = {"models": models, "pictures": pictures, "palette": palette, "limits": LIMITS}
        return JSONResponse(content)

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

    def read_query(self, fields: Any) -> Query:
        """From the page's JSON; the clustering checks its own settings."""
        model, picture = self.models[fields["model"]], self.pictures[fields["picture"]]
        fields = {"seed": 0, "head": 0, "view": 0, "patch": 0} | model.defaults | fields
        first, second = fields["boxes"]
        k_start, k_max = int(fields["k_start"]), model.cluster.k_max
        config = replace(
            model.cluster,
            tokens=fields["tokens"],
            k_start=k_start,
            k_max=None if k_max is None else min(k_max, k_start),
            sharpness=float(fields["sharpness"]),
            position_weight=float(fields["position_weight"]),
        )
        numbers = {name: int(fields[name]) for name in ("seed", "head", "view", "patch")}
        return Query(model, picture, (tuple(first), tuple(second)), config, **numbers)


def to_picture(identity: str, name: str, pixels: np.ndarray) -> Picture:
    return Picture(identity, name, pixels, to_jpeg(pixels, quality=93, subsampling=0))


def read_upload(data: bytes, name: str) -> Picture:
    """A picture or an HTTPException. The name is only shown."""
    try:
        pixels = decode_image(data, UPLOAD_PX)
    except UndecodableImage:
        raise HTTPException(415, "That file cannot be read as a picture.") from None
    if min(pixels.shape[:2]) < MIN_PX:
        raise HTTPException(422, f"That picture is too small or narrow: {MIN_PX} px at least.")
    return to_picture(secrets.token_hex(8), name[:80] or "photograph", pixels)


def find_clusters(query: Query) -> dict[str, Any]:
    """The maps of all heads, so that the page can switch heads by itself."""
    views, tokens = look_at_crops(query.model, query.picture, query.boxes, query.config.tokens)
    clusters = cluster_tokens(tokens, views, _keys(query), query.config)
    columns, grid = int(clusters.count.max()), query.model.grid
    share = softness(clusters.assignments)[1]
    heads = zip(*(v[0].tolist() for v in (clusters.count, clusters.valid, clusters.cost, share)))
    return {
        "grid": grid,
        "columns": columns,
        "heads": [
            {"k": k, "valid": valid[:k], "shared": sum(valid), "cost": cost, "share": share}
            for k, valid, cost, share in heads
        ],
        "maps": to_tiles(clusters.assignments[:, 0, ..., :columns].transpose(0, 1), grid),
    }


def trace_merging(query: Query) -> dict[str, Any]:
    """The merging of one head from K_start to 2."""
    views, tokens = look_at_crops(query.model, query.picture, query.boxes, query.config.tokens)
    weights = saliency(tokens, query.config)
    trace = trace_views(tokens.heads, views.positions, weights, query.config, keys=_keys(query))
    head, columns = query.head, query.config.k_start
    colors = follow_colors(trace, head)
    maps = [step.assignments[:, 0, head] for step in trace.steps]
    maps = torch.stack([F.pad(shares, (0, columns - shares.shape[-1])) for shares in maps])
    return {
        "grid": query.model.grid,
        "columns": columns,
        "chosen": int(trace.count[0, head]),
        "steps": [
            {
                "k": step.valid.shape[-1],
                "cost": float(step.cost[0, head]),
                "share": float(softness(step.assignments)[1][0, head]),
                "valid": step.valid[0, head].tolist(),
                "colors": colors[step.valid.shape[-1]],
            }
            for step in trace.steps
        ],
        "maps": to_tiles(maps, query.model.grid),
    }


def find_similar(query: Query) -> dict[str, Any]:
    """Cosines of one patch with all patches of both crops and of the whole photograph."""
    kind, grid = query.config.tokens, query.model.grid
    _, tokens = look_at_crops(query.model, query.picture, query.boxes, kind)
    whole, rows = look_at_whole(query.model, query.picture, kind)
    patches = F.normalize(tokens.heads[:, 0, query.head], dim=-1)
    patch = patches[query.view, query.patch]
    near, far = patches @ patch, F.normalize(whole[query.head], dim=-1) @ patch
    low = float(min(near.min(), far.min()))
    span = max(1 - low, 1e-6)
    return {
        "grid": grid,
        "low": low,
        "crops": to_png(((near - low) / span).reshape(-1, grid)),
        "whole": to_png(((far - low) / span).reshape(rows, -1)),
    }


@lru_cache(CACHED)
def look_at_crops(
    model: Model, picture: Picture, boxes: tuple[Box, Box], kind: str
) -> tuple[Views, Tokens]:
    """Cached, so that sliders only cluster again."""
    height, width, _ = picture.pixels.shape
    canvas = torch.from_numpy(place_on_canvas(picture.pixels, max(height, width)))
    places = torch.tensor(boxes, dtype=torch.float32)[:, None]
    flips = torch.zeros(2, 1, dtype=torch.bool)
    pixels = normalize(crop(canvas[None], Crops(places, flips), model.view_px))
    sizes, patch_px = torch.tensor([[height, width]]), model.backbone.patch_px
    positions = patch_centers(places, flips, sizes, model.view_px, patch_px)
    return Views(pixels, positions), model.backbone.forward_tokens(pixels, kind)


@lru_cache(CACHED)
def look_at_whole(model: Model, picture: Picture, kind: str) -> tuple[Float[Tensor, "H N d"], int]:
    """The photograph's tokens, seen at twice a crop's side, and their number of rows."""
    patch_px = model.backbone.patch_px
    pixels = whole_view(picture.pixels, 2 * model.grid * patch_px, patch_px).pixels
    return model.backbone.forward_tokens(pixels, kind).heads[0, 0], pixels.shape[-2] // patch_px


def _keys(query: Query) -> Tensor:
    return torch.tensor([sample_key(query.seed, 0, 0)])


def to_tiles(assignments: Float[Tensor, "L M N K"], rows: int) -> str:
    """One PNG: a row of tiles for each of L layers (heads or steps) and view, a column for each
    cluster. The shares of a patch sum to 1, so 8 bits suffice in both variants; a row of the
    released variant may be all zero."""
    shares = assignments / assignments.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return to_png(rearrange(shares, "l m (r c) k -> (l m r) (k c)", r=rows))


def to_png(values: Float[Tensor, "h w"]) -> str:
    """Values in 0 … 1 as a gray PNG, in a data URL."""
    gray = (values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return png_url(Image.fromarray(gray))
