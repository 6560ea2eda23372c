"""`croc segment discover`: classes of images without any labels, by K-means.

Everything is fitted on a sample of the images. Assignment to the nearest centroid is linear in the
features, so the clusters are a head like any other.
"""

import copy
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image, ImageChops, ImageFilter
from torch import Tensor, nn

from croc.data.decode import WHOLE_PX, decode_image
from croc.data.loader import iterate
from croc.errors import UserError
from croc.eval.evaluate import fit_image_size
from croc.eval.features import Moments, progress
from croc.eval.kmeans import ITERATIONS, POINTS_PER_CENTROID, Reduction, fit_kmeans
from croc.eval.machine import find_machine
from croc.eval.protocols import WithinConfig
from croc.io import versions
from croc.method.randomness import sample_key
from croc.segmentation.images import ImageFile, Loaded, Reader, list_images
from croc.segmentation.options import DiscoverOptions, PredictOptions
from croc.segmentation.predict import predict
from croc.segmentation.scores import in_batches, network_input
from croc.segmentation.segmenter import (
    HEAD,
    Color,
    Segmenter,
    check_new,
    default_colors,
    read_head,
    save_segmenter,
)
from croc.weights.backbones import FrozenBackbone, fingerprint
from croc.weights.open import check_storable, open_backbone
from croc.weights.record import without_folder

SAMPLE, SAMPLE_BYTES = 500, 2**30
"""Maximum number of images whose features are kept in memory, and their maximum size."""
PCA = 50
EXAMPLES, COLUMNS, TILE_PX, BORDER_PX = 12, 4, 192, 6
CROP = 0.45
"""Side of an example, as a fraction of the image's shorter side."""
FADED = 0.6
"""How strongly pixels outside the cluster are blended with mid-gray."""
Example = tuple[ImageFile, int, int, np.ndarray]
"""An image, the row and column of a patch, and the patches of the same cluster."""


def discover(options: DiscoverOptions) -> list[str]:
    """Make the head and its sheets, if missing, then the masks; return the lines to print."""
    folder = Path(options.to).expanduser()
    names = ("classes", "image_px", "blocks", "restarts", "seed")
    settings = {name: getattr(options, name) for name in names}
    if (folder / HEAD).is_file():
        metadata, weights = read_head(folder).get("facts", {}), without_folder(options.weights)
        before = {"restarts": DiscoverOptions.restarts, **metadata.get("config", {})}
        if before != settings or metadata.get("weights") != weights:
            raise UserError(
                f"{folder} contains a head made with different settings: choose another folder"
            )
        print(f"{folder} has a head already; completing the masks", file=sys.stderr)
    else:
        make_head(options, folder, settings)
    lines = predict(
        PredictOptions(
            head=str(folder),
            images=options.images,
            to=str(folder / "masks"),
            overlays=options.overlays,
            batch=options.batch,
            device=options.device,
            precision=options.precision,
            workers=options.workers,
        )
    )
    return [*lines, f"examples of each cluster: {folder / 'clusters'}"]


def make_head(options: DiscoverOptions, folder: Path, settings: dict[str, Any]) -> None:
    started = time.perf_counter()
    check_new(folder)
    machine = find_machine(options, fast=True)
    backbone = open_backbone(options.weights).float()
    check_storable(backbone)
    sizes = WithinConfig(image_px=options.image_px, blocks=options.blocks)
    px = fit_image_size(sizes, backbone).image_px
    files, _ = list_images(options.images, folder)
    order = np.random.Generator(np.random.Philox(sample_key(options.seed, 0, 0) % 2**63))
    order = order.permutation(len(files))[:SAMPLE]  # not sorted: only the first ones may fit
    working: Any = copy.deepcopy(backbone).to(machine.device, machine.precision)
    reader = Reader([files[index] for index in order], px)
    sample, features = compute_features(reader, working, options, machine.workers)
    head, examples, shares = fit_clusters(sample, features, options)
    names = tuple(f"cluster {number}" for number in range(options.classes))
    colors = default_colors(options.classes)
    segmenter = Segmenter(backbone, head, names, colors, px, options.blocks)

    def write_sheets(partial: Path) -> None:
        (partial / "clusters").mkdir()
        for name, color, cluster_examples in zip(names, colors, examples):
            draw_sheet(cluster_examples, color).save(partial / "clusters" / f"{name}.png")

    metadata = {
        "made by": "croc segment discover",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": without_folder(options.weights),
        "backbone hash": fingerprint(backbone),
        "images": len(files),
        "fitted on": len(sample),
        "share of patches": dict(zip(names, shares)),
        "config": settings,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": versions(),
    }
    save_segmenter(segmenter, folder, metadata, write_sheets)


@torch.inference_mode()
def compute_features(
    reader: Reader, backbone: FrozenBackbone, options: DiscoverOptions, workers: int
) -> tuple[list[ImageFile], Float[Tensor, "n C rows columns"]]:
    """The readable images, until their features reach SAMPLE_BYTES, and these features in half
    precision."""
    device = next(backbone.parameters()).device
    sample: list[ImageFile] = []
    features: list[Tensor] = []
    items = iterate(reader, range(len(reader.files)), workers=workers, ahead=4)
    batches = in_batches((item for item in items if isinstance(item, Loaded)), options.batch)
    total = -(-len(reader.files) // options.batch)
    for batch in progress(batches, "features", total):
        pixels = network_input(batch, backbone, device)
        features.append(backbone.features(pixels, options.blocks).half().cpu())
        sample += [image.file for image in batch]
        if sum(part.nbytes for part in features) >= SAMPLE_BYTES:
            break
    if not sample:
        raise UserError("no image can be decoded")
    return sample, torch.cat(features)


def fit_clusters(
    sample: Sequence[ImageFile],
    features: Float[Tensor, "n C rows columns"],
    options: DiscoverOptions,
) -> tuple[nn.Conv2d, list[list[Example]], list[float]]:
    """A linear layer whose argmax is the nearest centroid; each cluster's most typical patches; and
    the fraction of patches in each cluster.

    As in the evaluation: features are standardized and reduced by PCA before K-means.
    """
    moments = Moments()
    for chunk in features.split(32):
        moments.add(chunk)
    reduce = Reduction(moments, min(PCA, features.shape[1]))
    tokens = torch.cat([reduce(chunk.movedim(1, -1)) for chunk in features.split(32)])
    flat = tokens.flatten(0, 2).numpy()
    generator = np.random.Generator(np.random.Philox(sample_key(options.seed, 1, 0) % 2**63))
    count = min(len(flat), POINTS_PER_CENTROID * options.classes)
    points = flat[np.sort(generator.choice(len(flat), count, replace=False))]
    numbers = (options.classes, ITERATIONS["tokens"], options.restarts, options.seed)
    centroids = torch.from_numpy(fit_kmeans(points, *numbers))
    # |z − c|² = |z|² − (2 z·c − |c|²), and z is affine in the features.
    kernel = 2 * centroids @ (reduce.directions / reduce.deviation[:, None]).mT
    head = nn.Conv2d(features.shape[1], options.classes, kernel_size=1).requires_grad_(False)
    head.weight.copy_(kernel[..., None, None])
    head.bias.copy_(-centroids.square().sum(dim=1) - kernel @ reduce.mean)  # pyright: ignore
    candidates: list[list[tuple[float, Example]]] = [[] for _ in centroids]
    sizes = torch.zeros(len(centroids), dtype=torch.long)
    for number, grid in enumerate(tokens):
        distances = (grid[..., None, :] - centroids).square().sum(dim=-1).permute(2, 0, 1)
        clusters = distances.argmin(dim=0)
        around = F.avg_pool2d(distances, 3, stride=1, padding=1, count_include_pad=False)
        sizes += clusters.flatten().bincount(minlength=len(centroids))
        for cluster in clusters.unique().tolist():
            inside = clusters == cluster
            index = int(around[cluster].where(inside, torch.inf).argmin())
            row, column = divmod(index, grid.shape[1])
            distance = float(around[cluster, row, column])
            candidates[cluster].append((distance, (sample[number], row, column, inside.numpy())))
    examples = [
        [example for _, example in sorted(of_cluster, key=itemgetter(0))[:EXAMPLES]]
        for of_cluster in candidates
    ]
    return head.eval(), examples, (sizes / sizes.sum()).tolist()


def draw_sheet(examples: Sequence[Example], color: Color) -> Image.Image:
    """Crops of different images around a cluster's most typical patches; the rest is gray."""
    side = TILE_PX + 2 * BORDER_PX
    rows = max(1, -(-len(examples) // COLUMNS))
    sheet = Image.new("RGB", (COLUMNS * side, rows * side), color)
    for number, (file, row, column, inside) in enumerate(examples):
        image = Image.fromarray(decode_image(file.path.read_bytes(), WHOLE_PX))
        width, height = image.size
        crop = max(1, round(CROP * min(width, height)))
        x = (column + 0.5) / inside.shape[1] * width - crop / 2
        y = (row + 0.5) / inside.shape[0] * height - crop / 2
        left, top = (round(min(max(0, x), width - crop)), round(min(max(0, y), height - crop)))
        box, size = (left, top, left + crop, top + crop), (TILE_PX, TILE_PX)
        part = image.crop(box).resize(size)
        mask = Image.fromarray((255 * inside).astype(np.uint8)).resize(image.size).crop(box)
        mask = mask.resize(size).convert("1", dither=Image.Dither.NONE).convert("L")
        gray = Image.blend(part.convert("L"), Image.new("L", size, 128), FADED).convert("RGB")
        part = Image.composite(part, gray, mask)
        wide, narrow = mask.filter(ImageFilter.MaxFilter(3)), mask.filter(ImageFilter.MinFilter(3))
        part.paste(color, mask=ImageChops.subtract(wide, narrow))
        corner = (number % COLUMNS * side + BORDER_PX, number // COLUMNS * side + BORDER_PX)
        sheet.paste(part, corner)
    return sheet
