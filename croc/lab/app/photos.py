"""Photographs of a folder, and their patch tokens, which are computed once and kept on disk.

The tokens' folder is named after the network and the image size. It has one file per photograph,
with its tokens in float16, a small JPEG for the page, and the photograph's size in bytes and its
time. If these differ, or the file is damaged, they are computed again.
"""

import copy
import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from croc.data.decode import WHOLE_PX, UndecodableImage, decode_image, downscale_image
from croc.data.sources import printable
from croc.eval.features import resize_image
from croc.io import replacing
from croc.lab.app.local import to_jpeg
from croc.segmentation.images import list_images
from croc.segmentation.segmenter import Segmenter
from croc.weights.backbones import fast_precision, fingerprint

SHOWN_PX = 640
"""Longer side of a photograph on the page."""


FULL_PX = 2560
"""The same of one that is looked at closely."""


class Photos:
    """In the order of their names; those in `sizes` are ready."""

    def __init__(self, folder: Path, to: Path, segmenter: Segmenter) -> None:
        self.segmenter = segmenter
        fast = copy.deepcopy(segmenter.backbone)
        self.backbone = fast.to(dtype=fast_precision(segmenter.device))
        files, root = list_images([str(folder)], to.absolute())
        self.paths = [file.path for file in files]
        relative = (os.path.relpath(path, root) for path in self.paths)
        self.names = [printable(os.fsencode(name)) for name in relative]
        self.mask_names = [file.name for file in files]
        self.number = {name: index for index, name in enumerate(self.names)}
        self.cache = to / "tokens" / f"{fingerprint(segmenter.backbone)}-{segmenter.image_px}"
        self.sizes: dict[int, tuple[int, int]] = {}
        """Height and width of each photograph that is ready, in the order of preparation."""
        self.skipped: dict[int, str] = {}
        """Why a photograph cannot be read."""

    def __len__(self) -> int:
        return len(self.paths)

    def prepare(self, index: int) -> None:
        """Compute a photograph's tokens unless they are on disk."""
        photo, file = self.paths[index], self._file(index)
        try:
            version = f"{photo.stat().st_size} {photo.stat().st_mtime_ns}"
            metadata = read_metadata(file)
            if metadata.get("photo") != version:
                image = decode_image(photo.read_bytes(), WHOLE_PX)
                jpeg = bytearray(to_jpeg(downscale_image(image, SHOWN_PX), quality=88))
                jpeg = torch.frombuffer(jpeg, dtype=torch.uint8)
                tensors = {"tokens": self._compute(image), "jpeg": jpeg}
                height, width, _ = map(str, image.shape)
                metadata = {"height": height, "width": width, "photo": version}
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file, shared=True) as partial:
                    save_file(tensors, partial, metadata)
        except (OSError, UndecodableImage) as error:
            self.skipped[index] = getattr(error, "strerror", None) or "not a readable image"
            return
        self.sizes[index] = int(metadata["height"]), int(metadata["width"])

    def tokens(self, index: int) -> Float[Tensor, "C rows columns"]:
        return self._read(index, "tokens")

    def jpeg(self, index: int) -> bytes:
        return self._read(index, "jpeg").numpy().tobytes()

    def full_jpeg(self, index: int) -> bytes:
        return to_jpeg(decode_image(self.paths[index].read_bytes(), FULL_PX), quality=90)

    def _file(self, index: int) -> Path:
        return self.cache / f"{self.mask_names[index]}.safetensors"

    def _read(self, index: int, name: str) -> Tensor:
        with safe_open(self._file(index), "pt") as opened:
            return opened.get_tensor(name)

    @torch.inference_mode()
    def _compute(self, image: Any) -> Float[Tensor, "C rows columns"]:
        segmenter = self.segmenter
        pixels = resize_image(image, segmenter.image_px, segmenter.unit_px)
        inputs = self.backbone.normalize(pixels[None].to(segmenter.device) / 255)
        features = self.backbone.features(inputs, segmenter.blocks)
        return features[0].half().cpu().contiguous()


def read_metadata(file: Path) -> dict[str, str]:
    """Nothing if the file does not exist or is damaged."""
    try:
        with safe_open(file, "pt") as opened:
            return opened.metadata() or {}
    except (OSError, SafetensorError):
        return {}
