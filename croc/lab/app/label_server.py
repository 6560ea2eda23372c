"""`croc app label`: images, labels of clicked patches, the head fitted to them, masks, exports."""

import asyncio
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor, nn

from croc.data.decode import UndecodableImage, fitting_size
from croc.errors import UserError
from croc.eval.features import Moments
from croc.io import cores, try_lock
from croc.lab.app.label_export import export_labels, find_mask
from croc.lab.app.labels import open_labels, read_labels, save_labels
from croc.lab.app.local import LocalServer, png_url
from croc.lab.app.photos import FULL_PX, Photos
from croc.plotting import PALETTE_HEX
from croc.segmentation.scores import certainty
from croc.segmentation.segmenter import Segmenter
from croc.tables import one_line
from croc.weights.backbones import check_fit
from croc.weights.open import open_backbone

DECAY = 0.1
"""Weight of the squared weights of the linear layer: of 0.1, 0.01 and 0.001 the best in simulated
labeling, though they differ little (dev/LOG.md)."""
NEVER = -1e4
"""Logit of a class without clicks."""
MASK_PX = 320
"""Longer side of a mask on the page by default; exported ones have the image's own size."""
MEASURED = 32
"""Number of images from whose tokens the mean and deviation of the features are computed."""


Patch = tuple[int, int, int]
"""Number of the photograph, row and column."""


class LabelServer(LocalServer):
    """Computes the tokens of all photographs in the background, from the start."""

    def __init__(self, folder: Path, to: Path, segmenter: Segmenter) -> None:
        super().__init__("label.html")
        self.to = to
        self.photos = Photos(folder, to, segmenter)
        self.grid = segmenter.image_px // segmenter.backbone.stride_px
        self.head: nn.Conv2d | None = None
        self.fitted_to: Any = None
        self.vectors: dict[Patch, Tensor] = {}
        self.moments, self.measured = Moments(), 0
        self.problem, self.export_state = "", {"state": "none"}
        self.stopping = False
        to.mkdir(parents=True, exist_ok=True)
        self.lock = (to / "lock").open("w")  # two servers would overwrite each other's labels
        if not try_lock(self.lock):
            self.lock.close()
            raise UserError(f"another croc app label uses {to}: stop it, or choose another --to")
        self.labels: dict[str, Any] = open_labels(folder, to)
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
            Route("/api/photographs/{index:int}/full", self.full_photograph),
            self.post("labels", read_change, self.set_labels, at_once=True),
            self.post("masks", read_numbers, self.find_masks),
            self.post("order", dict, self.find_order),
            self.post("export", dict, self.start_export),
        ]

    async def start(self, request: Request) -> Response:
        segmenter = self.photos.segmenter
        content = {
            "weights": segmenter.backbone.name,
            "to": str(self.to),
            "names": self.photos.names,
            "grid": [self.grid] * 2,
            "palette": [f"#{color}" for color in PALETTE_HEX.split()],
        }
        return JSONResponse(self.labels | content)

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

    async def full_photograph(self, request: Request) -> Response:
        """From the file, in another thread: it may take a while."""
        index = request.path_params["index"]
        if index not in self.photos.sizes:
            raise HTTPException(404)
        try:
            jpeg = await asyncio.to_thread(self.photos.full_jpeg, index)
        except (OSError, UndecodableImage):  # deleted or overwritten meanwhile
            raise HTTPException(404) from None
        return Response(jpeg, media_type="image/jpeg")

    def set_labels(self, change: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        """Save at once; the head is refitted when it is next needed."""
        based_on, labels = change
        if based_on != self.labels["revision"]:
            raise HTTPException(409, "The labels were changed in another tab.")
        labels = self.labels | labels | {"revision": based_on + 1}
        try:
            save_labels(labels, self.to)
        except OSError as error:
            raise HTTPException(500, f"The labels cannot be saved: {error.strerror}.") from None
        self.labels = labels
        return {"revision": labels["revision"]}

    def fit(self) -> tuple[nn.Conv2d | None, dict[str, Any]]:
        """The head for the labels, and these; None if fewer than two classes have clicks."""
        labels, photos = self.labels, self.photos  # which a save may replace meanwhile
        while self.measured < min(MEASURED, len(photos.sizes)):
            self.moments.add(photos.tokens(list(photos.sizes)[self.measured])[None])
            self.measured += 1
        patches = clicked_patches(photos, self.grid, labels["clicks"])
        fitted_to = patches, len(labels["classes"]), self.measured
        if fitted_to != self.fitted_to:
            for index, row, column in patches.keys() - self.vectors.keys():
                vector = photos.tokens(index)[:, row, column].float()
                self.vectors[index, row, column] = vector
            self.head, classes = None, torch.tensor(list(patches.values()))
            if len(classes.unique()) > 1:
                tokens = torch.stack([self.vectors[patch] for patch in patches])
                self.head = fit_head(tokens, classes, len(labels["classes"]), self.moments)
            self.fitted_to = fitted_to
        return self.head, labels

    def find_masks(self, query: tuple[list[int], int]) -> dict[str, Any]:
        """A mask and a certainty for each of the photographs; nothing without a head."""
        masks: dict[int, dict[str, Any]] = {}
        numbers, px = query
        head, labels = self.fit()
        for index, scores in self.scores(head, numbers):
            height, width = self.photos.sizes[index]
            width, height = fitting_size((width, height), px)
            mask = find_mask(scores, labels, self.photos.names[index], (height, width))
            url = png_url(mask, transparency=bytes([0] + [255] * 254))
            masks[index] = {"mask": url, "certainty": certainty(scores.softmax(dim=0))}
        return {"masks": masks}

    def find_order(self, _: object) -> dict[str, Any]:
        """The certainty of every photograph."""
        by_index = self.scores(self.fit()[0], list(self.photos.sizes))
        return {
            "certainty": {index: certainty(scores.softmax(dim=0)) for index, scores in by_index}
        }

    def scores(
        self, head: nn.Conv2d | None, numbers: list[int]
    ) -> Iterator[tuple[int, Float[Tensor, "K h w"]]]:
        """Of the photographs that are ready, once there is a head."""
        for index in numbers:
            if head and index in self.photos.sizes:
                yield index, head(self.photos.tokens(index)[None].float())[0]

    def start_export(self, _: object) -> dict[str, Any]:
        head, labels = self.fit()
        if head is None or len(self.photos.sizes) + len(self.photos.skipped) < len(self.photos):
            raise UserError(
                "cannot export yet: wait until all images are processed, and click patches of two "
                "classes"
            )
        if self.export_state["state"] != "running":
            self.problem, self.export_state = "", {"state": "running", "done": 0}
            self._start(partial(self._export, head, labels))
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
        for state in export_labels(head, labels, self.photos, self.to):
            if self.stopping:
                return
            self.export_state = state


def clicked_patches(photos: Photos, grid: int, clicks: list[dict[str, Any]]) -> dict[Patch, int]:
    """The class of each clicked patch, of photographs that are ready."""
    return {
        (index, int(click["y"] * grid), int(click["x"] * grid)): click["class"]
        for click in clicks
        if (index := photos.number.get(click["photo"])) in photos.sizes and index is not None
    }


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


def read_change(content: Any) -> tuple[int, dict[str, Any]]:
    return content["revision"], read_labels(content)


def read_numbers(content: Any) -> tuple[list[int], int]:
    """Of photographs, and the longer side of their masks."""
    px = min(int(content.get("px") or MASK_PX), FULL_PX)
    return [int(number) for number in content["photographs"]], px


def open_segmenter(weights: str, image_px: int) -> Segmenter:
    """A backbone, on a GPU if there is one, whose head is fitted later."""
    backbone = open_backbone(weights).float()
    check_fit(backbone, image_px, flag="--image-px: images")
    segmenter = Segmenter(backbone, nn.Identity(), (), (), image_px, blocks=1)
    return segmenter.to("cuda" if torch.cuda.is_available() else "cpu")
