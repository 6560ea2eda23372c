"""The server of the labeling page: images, labels, masks and exports."""

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
from jaxtyping import Float, UInt8
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor, nn

from croc.data.decode import fitting_size
from croc.errors import UserError
from croc.eval.features import Moments
from croc.io import cores, try_lock
from croc.lab.app.labels import (
    certainty,
    clicked_tokens,
    fit_head,
    read_labels,
    save_labels,
)
from croc.lab.app.local import LocalServer, png_url
from croc.lab.app.photos import Photos
from croc.plotting import PALETTE_HEX
from croc.segmentation.segmenter import Segmenter, argmax_upsampled, save_segmenter
from croc.tables import one_line
from croc.weights.open import check_fit, open_backbone

MASK_PX = 320
"""Longer side of a mask on the page; exported ones have the image's own size."""
MEASURED = 32
"""Number of images from whose tokens the mean and deviation of the features are computed."""


class LabelServer(LocalServer):
    """Opening one starts to compute the tokens of all photographs, in the background."""

    def __init__(self, folder: Path, to: Path, segmenter: Segmenter) -> None:
        super().__init__("label.html")
        self.folder, self.to = folder, to
        self.photos = Photos(folder, to, segmenter)
        self.labels = read_labels(to)
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
        self.worker.submit(self._work, self._compute)

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
            self.post("order", read_numbers, self.find_order),
            self.post("export", read_numbers, self.start_export),
        ]

    async def start(self, request: Request) -> Response:
        segmenter = self.photos.segmenter
        start = {
            "weights": segmenter.backbone.name,
            "folder": str(self.folder),
            "to": str(self.to),
            "names": self.photos.names,
            "grid": [segmenter.image_px // segmenter.backbone.stride_px] * 2,
            "palette": [f"#{color}" for color in PALETTE_HEX.split()],
        }
        return JSONResponse(start | self.labels)

    async def progress(self, request: Request) -> Response:
        """The photographs that became ready after the first `since`."""
        photos, since = self.photos, int(request.query_params.get("since", "0"))
        ready = [[index, *size] for index, size in list(photos.sizes.items())[since:]]
        skipped = [[photos.names[index], why] for index, why in list(photos.skipped.items())]
        answer = {"ready": ready, "skipped": skipped, "problem": self.problem}
        return JSONResponse(answer | {"export": self.export_state})

    async def photograph(self, request: Request) -> Response:
        index = request.path_params["index"]
        if index not in self.photos.sizes:
            raise HTTPException(404)
        return Response(self.photos.jpeg(index), media_type="image/jpeg")

    def set_labels(self, labels: dict[str, Any]) -> dict[str, Any]:
        """Save at once; the head is refitted when it is next needed."""
        save_labels(self.to, labels)
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
        answer: dict[int, dict[str, Any]] = {}
        for index, scores in self.scores(numbers):
            height, width = self.photos.sizes[index]
            width, height = fitting_size((width, height), MASK_PX)
            mask = to_image(argmax_upsampled(scores, (height, width)), self.labels)
            url = png_url(mask, transparency=bytes([0] + [255] * 254))
            answer[index] = {"mask": url, "certainty": certainty(scores)}
        return {"masks": answer}

    def find_order(self, numbers: list[int]) -> dict[str, Any]:
        """The certainty of every photograph."""
        ready = self.scores(list(self.photos.sizes))
        return {"certainty": {index: certainty(scores) for index, scores in ready}}

    def scores(self, numbers: list[int]) -> Iterator[tuple[int, Float[Tensor, "K h w"]]]:
        """Of those photographs that are ready, once there is a head."""
        head = self.fit()
        for index in numbers:
            if head and index in self.photos.sizes:
                yield index, head(self.photos.tokens(index)[None].float())[0]

    def start_export(self, numbers: list[int]) -> dict[str, Any]:
        head = self.fit()
        if head is None or len(self.photos.sizes) + len(self.photos.skipped) < len(self.photos):
            raise UserError("not yet: all photographs must be ready, and two classes have clicks")
        if self.export_state["state"] != "running":
            self.problem, self.export_state = "", {"state": "running", "done": 0}
            self.worker.submit(self._work, partial(self._export, head, self.labels))
        return {}

    def _work(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # such as a full disk
            traceback.print_exc()
            self.problem = one_line(str(error))
            self.export_state = {"state": "none"}

    def _compute(self) -> None:
        for index in range(len(self.photos)):
            if self.stopping:
                return
            self.photos.prepare(index)

    @torch.inference_mode()
    def _export(self, head: nn.Conv2d, labels: dict[str, Any]) -> None:
        """The head and all masks, in place of those of an earlier export."""
        photos = self.photos
        classes = tuple(each["name"] for each in labels["classes"])
        colors: Any = tuple(tuple(bytes.fromhex(c["color"][1:])) for c in labels["classes"])
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
        done = {"state": "done", "head": str(folder / "head"), "masks": str(folder / "masks")}
        self.export_state = done | {"done": len(photos.sizes)}


def to_image(classes: UInt8[np.ndarray, "h w"], labels: dict[str, Any]) -> Image.Image:
    image = Image.fromarray(classes)
    colors = b"".join(bytes.fromhex(each["color"][1:]) for each in labels["classes"])
    image.putpalette(colors + bytes(768 - len(colors)))  # a full palette keeps 8 bits
    return image


def read_numbers(content: Any) -> list[int]:
    return [int(number) for number in content["photographs"]]


def open_segmenter(weights: str, image_px: int) -> Segmenter:
    """A backbone, on a GPU if there is one, whose head is fitted later."""
    backbone = open_backbone(weights, image_px).float()
    check_fit(backbone, image_px, flag="--image-px: images")
    segmenter = Segmenter(backbone, nn.Identity(), (), (), image_px, blocks=1)
    return segmenter.to("cuda" if torch.cuda.is_available() else "cpu")
