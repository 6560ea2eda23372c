"""`croc app label`: images, labels of clicked patches, the head fitted to them, masks, exports.

labels.json, which is also what the page sends and receives:

{"classes": [{"name": "background", "color": "#808080"}, …],
 "clicks": [{"photo": "a/b.jpg", "x": 0.31, "y": 0.72, "class": 0}, …]}

x and y are shares of the image's width and height, classes are numbered from 0.
"""

import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor, nn

from croc.data.decode import fitting_size
from croc.errors import UserError
from croc.eval.features import Moments
from croc.io import cores, replacing, try_lock
from croc.lab.app.local import LocalServer, png_url
from croc.lab.app.photos import Photos
from croc.plotting import PALETTE_HEX
from croc.segmentation.segmenter import Segmenter, argmax_upsampled, save_segmenter
from croc.tables import one_line
from croc.weights.backbones import check_fit
from croc.weights.open import open_backbone

FILE = "labels.json"
START = {
    "classes": [
        {"name": "background", "color": "#7a7f87"},
        {"name": "object", "color": "#0c97ff"},
    ],
    "clicks": [],
}
"""The labels of a new folder."""
DECAY = 0.1
"""Weight of the squared weights of the linear layer: of 0.1, 0.01 and 0.001 the best in simulated
labeling, though they differ little (dev/LOG.md)."""
NEVER = -1e4
"""Logit of a class without clicks."""
MASK_PX = 320
"""Longer side of a mask on the page; exported ones have the image's own size."""
MEASURED = 32
"""Number of images from whose tokens the mean and deviation of the features are computed."""


class LabelServer(LocalServer):
    """Computes the tokens of all photographs in the background, from the start."""

    def __init__(self, folder: Path, to: Path, segmenter: Segmenter) -> None:
        super().__init__("label.html")
        self.folder, self.to = folder, to
        self.photos = Photos(folder, to, segmenter)
        file = to / FILE
        self.labels = json.loads(file.read_text("utf-8")) if file.exists() else START
        self.head: nn.Conv2d | None = None
        self.moments, self.measured = Moments(), 0
        self.problem, self.export_state = "", {"state": "none"}
        self.stopping = False
        to.mkdir(parents=True, exist_ok=True)
        self.lock = (to / "lock").open("w")  # two servers would overwrite each other's labels
        if not try_lock(self.lock):
            self.lock.close()
            raise UserError(f"another croc app label uses {to}: stop it, or choose another --to")
        self.worker = ThreadPoolExecutor(1, "croc tokens", torch.set_num_threads, (cores(),))
        self._start(self._compute)

    def close(self) -> None:
        self.stopping = True
        self.worker.shutdown(cancel_futures=True)
        super().close()
        self.lock.close()

    def routes(self) -> Sequence[Route]:
        return [
            Route("/api/start", self.start),
            Route("/api/progress", self.progress),
            Route("/api/photographs/{index:int}", self.photograph),
            self.post("labels", dict, self.set_labels),
            self.post("masks", read_numbers, self.find_masks),
            self.post("order", dict, self.find_order),
            self.post("export", dict, self.start_export),
        ]

    async def start(self, request: Request) -> Response:
        segmenter = self.photos.segmenter
        content = {
            "weights": segmenter.backbone.name,
            "folder": str(self.folder),
            "to": str(self.to),
            "names": self.photos.names,
            "grid": [segmenter.image_px // segmenter.backbone.stride_px] * 2,
            "palette": [f"#{color}" for color in PALETTE_HEX.split()],
        }
        return JSONResponse(content | self.labels)

    async def progress(self, request: Request) -> Response:
        """The photographs that became ready after the first `since`."""
        photos, since = self.photos, int(request.query_params.get("since", "0"))
        content = {
            "ready": [[index, *size] for index, size in list(photos.sizes.items())[since:]],
            "skipped": [[photos.names[index], why] for index, why in list(photos.skipped.items())],
            "problem": self.problem,
            "export": self.export_state,
        }
        return JSONResponse(content)

    async def photograph(self, request: Request) -> Response:
        index = request.path_params["index"]
        if index not in self.photos.sizes:
            raise HTTPException(404)
        return Response(self.photos.jpeg(index), media_type="image/jpeg")

    def set_labels(self, labels: dict[str, Any]) -> dict[str, Any]:
        """Save at once; the head is refitted when it is next needed."""
        with replacing(self.to / FILE) as path:
            path.write_text(json.dumps(labels, indent=1, ensure_ascii=False) + "\n", "utf-8")
        self.labels, self.head = labels, None
        return {}

    def fit(self) -> nn.Conv2d | None:
        """The head for the labels; None if fewer than two classes have clicks."""
        while self.measured < min(MEASURED, len(self.photos.sizes)):
            self.moments.add(self.photos.tokens(list(self.photos.sizes)[self.measured])[None])
            self.measured, self.head = self.measured + 1, None
        if self.head is None:
            tokens, classes = clicked_tokens(self.photos, self.labels["clicks"])
            if len(classes.unique()) > 1:
                count = len(self.labels["classes"])
                self.head = fit_head(tokens, classes, count, self.moments)
        return self.head

    def find_masks(self, numbers: list[int]) -> dict[str, Any]:
        """A mask and a certainty for each of the photographs; nothing without a head."""
        masks: dict[int, dict[str, Any]] = {}
        for index, scores in self.scores(numbers):
            height, width = self.photos.sizes[index]
            width, height = fitting_size((width, height), MASK_PX)
            mask = to_image(argmax_upsampled(scores, (height, width)), self.labels)
            url = png_url(mask, transparency=bytes([0] + [255] * 254))
            masks[index] = {"mask": url, "certainty": certainty(scores)}
        return {"masks": masks}

    def find_order(self, _: object) -> dict[str, Any]:
        """The certainty of every photograph."""
        by_index = self.scores(list(self.photos.sizes))
        return {"certainty": {index: certainty(scores) for index, scores in by_index}}

    def scores(self, numbers: list[int]) -> Iterator[tuple[int, Float[Tensor, "K h w"]]]:
        """Of the photographs that are ready, once there is a head."""
        head = self.fit()
        for index in numbers:
            if head and index in self.photos.sizes:
                yield index, head(self.photos.tokens(index)[None].float())[0]

    def start_export(self, _: object) -> dict[str, Any]:
        head = self.fit()
        if head is None or len(self.photos.sizes) + len(self.photos.skipped) < len(self.photos):
            raise UserError(
                "cannot export yet: wait until all images are processed, and click patches of two "
                "classes"
            )
        if self.export_state["state"] != "running":
            self.problem, self.export_state = "", {"state": "running", "done": 0}
            self._start(partial(self._export, head, self.labels))
        return {}

    def _start(self, task: Callable[[], None]) -> None:
        """Run a task in the background; the page shows its error, such as a full disk."""

        def run() -> None:
            try:
                task()
            except Exception as error:
                traceback.print_exc()
                self.problem = one_line(str(error))
                self.export_state = {"state": "none"}

        self.worker.submit(run)

    def _compute(self) -> None:
        for index in range(len(self.photos)):
            if self.stopping:
                return
            self.photos.prepare(index)

    @torch.inference_mode()
    def _export(self, head: nn.Conv2d, labels: dict[str, Any]) -> None:
        """Write the head and all masks, in place of those of an earlier export."""
        photos = self.photos
        classes = tuple(entry["name"] for entry in labels["classes"])
        colors: Any = tuple(tuple(bytes.fromhex(x["color"][1:])) for x in labels["classes"])
        segmenter = replace(photos.segmenter, head=head, classes=classes, colors=colors)
        new, folder = self.to / "new", self.to / "export"
        shutil.rmtree(new, ignore_errors=True)
        metadata = {"made": "croc app label", "clicks": len(labels["clicks"])}
        save_segmenter(segmenter, new / "head", metadata)
        for done, (index, size) in enumerate(photos.sizes.items()):
            if self.stopping:
                return
            scores = head(photos.tokens(index)[None].float())[0]
            path = new / "masks" / f"{photos.mask_names[index]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            to_image(argmax_upsampled(scores, size), labels).save(path)
            self.export_state = {"state": "running", "done": done + 1}
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
        self.export_state = {
            "state": "done",
            "done": len(photos.sizes),
            "head": str(folder / "head"),
            "masks": str(folder / "masks"),
        }


def clicked_tokens(
    photos: Photos, clicks: list[dict[str, Any]]
) -> tuple[Float[Tensor, "n C"], Int64[Tensor, "n"]]:
    """The tokens and classes of the clicked patches, of photographs that are ready."""
    tokens, classes = [], []
    for click in clicks:
        index = photos.number.get(click["photo"])
        if index in photos.sizes:
            grid = photos.tokens(index)
            _, rows, columns = grid.shape
            row, column = int(click["y"] * rows), int(click["x"] * columns)
            tokens.append(grid[:, row, column].float())
            classes.append(click["class"])
    return torch.stack(tokens) if tokens else torch.zeros(0, 1), torch.tensor(classes).long()


def fit_head(
    tokens: Float[Tensor, "n C"], classes: Int64[Tensor, "n"], count: int, moments: Moments
) -> nn.Conv2d:
    """Logistic regression on standardized tokens, as one layer on the tokens themselves.

    All classes have the same weight, however many clicks they have. A class without clicks is
    never predicted.
    """
    points = (tokens - moments.mean) / moments.deviation
    clicks = classes.bincount(minlength=count)
    weight = torch.zeros(count, points.shape[1], requires_grad=True)
    bias = torch.zeros(count, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = F.linear(points, weight, bias)
        loss = F.cross_entropy(logits, classes, weight=1 / clicks.clamp_min(1))
        loss = loss + DECAY * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # which enables gradients
    head: Any = nn.Conv2d(points.shape[1], count, kernel_size=1).requires_grad_(False)
    scaled = weight.detach() / moments.deviation
    head.weight.copy_(scaled[:, :, None, None])
    head.bias.copy_((bias.detach() - scaled @ moments.mean).where(clicks > 0, NEVER))
    return head.eval()


def certainty(scores: Float[Tensor, "classes rows columns"]) -> float:
    """The mean over patches of the margin between the two most probable classes."""
    best = scores.softmax(dim=0).topk(2, dim=0).values
    return float((best[0] - best[1]).mean())


def to_image(classes: UInt8[np.ndarray, "h w"], labels: dict[str, Any]) -> Image.Image:
    image = Image.fromarray(classes)
    colors = b"".join(bytes.fromhex(entry["color"][1:]) for entry in labels["classes"])
    image.putpalette(colors + bytes(768 - len(colors)))  # a full palette keeps 8 bits
    return image


def read_numbers(content: Any) -> list[int]:
    return [int(number) for number in content["photographs"]]


def open_segmenter(weights: str, image_px: int) -> Segmenter:
    """A backbone, on a GPU if there is one, whose head is fitted later."""
    backbone = open_backbone(weights).float()
    check_fit(backbone, image_px, flag="--image-px: images")
    segmenter = Segmenter(backbone, nn.Identity(), (), (), image_px, blocks=1)
    return segmenter.to("cuda" if torch.cuda.is_available() else "cpu")
