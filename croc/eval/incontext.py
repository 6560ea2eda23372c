"""In-context segmentation: patches take the labels of their nearest neighbors in a memory.

After Balažević et al. 2023 (Hummingbird) and open-hummingbird-eval. Nothing is trained: the memory
has labeled patches of the training split, and each patch of a new image is looked up in it. The
search is exact. Differences from open-hummingbird-eval: ignored pixels stay out of the memory
(there they become class 0), training images are seen once and whole (there in random crops with
jitter, twice for its table), and a prediction counts as the class it names (there predictions are
first matched to classes, which helps poor features).
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import PatchFeatures, Report, score
from croc.eval.machine import Machine
from croc.eval.metrics import IGNORED
from croc.eval.protocols import InContextConfig
from croc.method.randomness import sample_key, uniform
from croc.weights.backbones import DenseBackbone

QUERIES_AT_ONCE = 128  # similarities of each with a million stored patches take 512 MiB


def evaluate_incontext(
    backbone: DenseBackbone,
    machine: Machine,
    train: SegmentationData,
    val: SegmentationData,
    config: InContextConfig,
) -> Report:
    """Store the patches of one split, look up those of the other and score their labels."""
    sizes = (config.image_px, config.label_px, config.blocks)
    memory = fill_memory(PatchFeatures(backbone, machine, train, *sizes), config)
    return score(PatchFeatures(backbone, machine, val, *sizes), [memory])[0]


class Memory(nn.Module):
    """Labeled patches, and how a new patch gets its label from them.

    for every new patch q, with n over the `neighbors` patches of the largest cosine to it:
        weight[n] = softmax over n of cosine(q, n) / temperature
        prediction[q] = Σ_n weight[n] · histogram[n]

    Ties between equally near patches are broken arbitrarily. Features have unit length and are
    float32, since products in bfloat16 would make many neighbors equally near; a histogram has the
    share of each class among a patch's labeled pixels.
    """

    def __init__(
        self,
        features: Float[Tensor, "n C"],
        histograms: Float[Tensor, "n classes"],
        neighbors: int,
        temperature: float,
    ) -> None:
        super().__init__()
        self.features, self.histograms = nn.Buffer(features), nn.Buffer(histograms)
        self.neighbors, self.temperature = neighbors, temperature

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B classes h w"]:
        """A distribution over the classes for each patch."""
        predicted = []
        patches = _unit(rearrange(features, "b c h w -> (b h w) c"))
        for queries in patches.split(QUERIES_AT_ONCE):
            cosines = queries @ self.features.mT
            nearest = cosines.topk(min(self.neighbors, len(self.features)), dim=1)
            weights = (nearest.values / self.temperature).softmax(dim=1)
            predicted.append(torch.einsum("qn,qnk->qk", weights, self.histograms[nearest.indices]))
        rows, columns = features.shape[2:]
        return rearrange(torch.cat(predicted), "(b h w) k -> b k h w", h=rows, w=columns)


def fill_memory(patches: PatchFeatures, config: InContextConfig) -> Memory:
    """Labeled patches of all images, in order; independent of the batch size."""
    images, classes, device = len(patches.data), len(patches.data.classes), patches.device
    features, histograms, start = [], [], 0
    for maps, labels in patches.all_batches("memory"):
        counts = count_labels(labels, classes, maps.shape[2], maps.shape[3]).flatten(1, 2)
        numbers = range(start, start + len(maps))
        start = numbers.stop
        # How many patches each image may give, and a number in (0, 1) for each of its patches.
        ends = torch.tensor([index * config.memory // images for index in (*numbers, start)])
        keys = torch.tensor([sample_key(config.seed, 0, index) for index in numbers], device=device)
        draws = uniform(keys, "memory", counts.shape[1])
        chosen = choose(counts, ends.diff().to(device), draws)
        features.append(_unit(rearrange(maps, "b c h w -> b (h w) c")[chosen]))
        histograms.append(F.normalize(counts[chosen].to(features[-1].dtype), p=1.0, dim=1))
    if not sum(map(len, features)):
        raise UserError(
            "no labeled patch for the memory: label the training split, or increase the memory"
        )
    return Memory(torch.cat(features), torch.cat(histograms), config.neighbors, config.temperature)


def count_labels(
    labels: Int64[Tensor, "B height width"], classes: int, rows: int, columns: int
) -> Int64[Tensor, "B rows columns classes"]:
    """How many pixels of each class have their center in each patch; ignored ones do not count.

    for every pixel with label ≠ 255: counts[image, ⌊(y + ½) rows / height⌋, likewise x, label] += 1
    """
    images = len(labels)
    row, column = (
        (2 * torch.arange(pixels, device=labels.device) + 1) * patches // (2 * pixels)
        for pixels, patches in zip(labels.shape[1:], (rows, columns))
    )
    image = torch.arange(images, device=labels.device)[:, None, None]
    patch = (image * rows + row[:, None]) * columns + column
    # Ignored pixels go to a class past the end, so that shapes stay fixed.
    cells = patch * (classes + 1) + torch.where(labels == IGNORED, classes, labels)
    counts = cells.flatten().bincount(minlength=images * rows * columns * (classes + 1))
    return counts.view(images, rows, columns, classes + 1)[..., :classes]


def choose(
    counts: Int64[Tensor, "B n classes"], shares: Int64[Tensor, "B"], draws: Float[Tensor, "B n"]
) -> Bool[Tensor, "B n"]:
    """The patches stored of each image: `shares` of the labeled ones, rare classes first.

    for every image: frequency[c] = number of its patches in which class c occurs
        for every labeled patch p: score[p] = draw[p] · Σ frequency[c] over the classes c in p
    The patches with the lowest scores are taken.
    """
    present = counts > 0
    frequency = present.sum(dim=1)
    # Exact in float64, so that all devices choose the same.
    scores = torch.einsum("bnk,bk->bn", present.double(), frequency.double()) * draws.double()
    labeled = present.any(dim=2)
    ranks = scores.where(labeled, math.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return labeled & (ranks < shares[:, None])


def _unit(features: Float[Tensor, "n C"]) -> Float[Tensor, "n C"]:
    """Scaled to length 1, in float32 or wider; a feature of zeros stays zero."""
    return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
