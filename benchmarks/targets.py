"""How well the clusters that the student is trained on match labeled regions.

    python -m benchmarks.targets --weights coco-20min --data folder:COCO-THINGS-MINI --settings \\
        'default=' 'uniform=--cluster.saliency uniform' 'free=--cluster.sizes free'

Two augmented views of each image are clustered as in a training step. Each token has the label at
its center. The score is the adjusted mutual information between labels and clusters (the largest
assignment), in percent: 0 by chance, whatever K, and 100 if they agree. It is averaged over heads
and over the images with at least two classes; only the training split is read. `position` is the
score of K-means on the tokens' positions, with K as in the last setting.
"""

import argparse
import json
import shlex
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64, UInt8
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from benchmarks.common import run, this_device
from croc.config import CrocConfig, parse
from croc.data.decode import downscale_image
from croc.eval.datasets import LabeledImage, open_segmentation
from croc.eval.metrics import IGNORED
from croc.lab.show.look import look_at_weights, to_canvases
from croc.method.backbone import Backbone
from croc.method.croc import cluster_tokens
from croc.method.types import Views
from croc.method.views import make_views

LEAST_TOKENS = 4
"""Tokens of a class in the two views, for it to count as one of the two classes needed."""


def labels_of(views: Views, image: int, labels: UInt8[np.ndarray, "h w"]) -> np.ndarray:
    """The label at the center of each token, of the first view and then of the second."""
    positions = views.positions[:, image].flatten(0, 1).cpu() * max(labels.shape)
    x, y = positions.floor().long().T.numpy()
    return labels[y.clip(0, labels.shape[0] - 1), x.clip(0, labels.shape[1] - 1)]


def compare(labels: np.ndarray, clusters: np.ndarray) -> float:
    labeled = labels != IGNORED
    return 100 * float(adjusted_mutual_info_score(labels[labeled], clusters[labeled]))


@torch.no_grad()
def measure(
    samples: Sequence[LabeledImage], config: CrocConfig, backbone: Backbone, device: torch.device
) -> tuple[list[float], list[float], list[float]]:
    """Of each image: the score, its clusters in both views, and the score of positions."""
    scores, shared, by_position = [], [], []
    for number, sample in enumerate(samples):
        image = downscale_image(sample.image, config.data.max_side_px)
        canvases = to_canvases([image], config.data.max_side_px, number).to(device)
        views = make_views(canvases, config.views, backbone.patch_px)
        labels = labels_of(views, 0, sample.labels)
        counts = np.bincount(labels[labels != IGNORED])
        if (counts >= LEAST_TOKENS).sum() < 2:
            continue
        tokens = backbone.forward_tokens(views.pixels, config.cluster.tokens)
        clusters = cluster_tokens(tokens, views, canvases.sample_keys, config.cluster)
        joined: Int64[Tensor, "H T"]
        joined = rearrange(clusters.assignments, "m 1 h n k -> h (m n) k").argmax(dim=-1).cpu()
        scores.append(float(np.mean([compare(labels, head.numpy()) for head in joined])))
        shared.append(clusters.valid.sum(dim=-1).float().mean().item())
        k = round(clusters.count.float().mean().item())
        positions = views.positions[:, 0].flatten(0, 1).cpu().numpy()
        places = KMeans(k, n_init="auto", random_state=number).fit_predict(positions)
        by_position.append(compare(labels, places))
    return scores, shared, by_position


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", required=True, help="bundled or exported, or random:NAME")
    parser.add_argument("--data", required=True, help="KIND:PATH, as for `croc evaluate`")
    parser.add_argument("--settings", nargs="+", default=["default="], help="'NAME=OPTIONS' …")
    parser.add_argument("--images", type=int, default=300)
    options = parser.parse_args(arguments)
    look, device = look_at_weights(options.weights), this_device()
    data = open_segmentation(options.data, "train", alone=True)
    samples = [data.read(index) for index in range(min(options.images, len(data)))]
    for setting in options.settings:
        name, _, flags = setting.partition("=")
        config = parse(CrocConfig, shlex.split(flags), "--settings", look.croc)
        scores, shared, position = measure(samples, config, look.backbone.to(device), device)
        record = {"setting": name, "score": np.mean(scores), "position": np.mean(position)}
        record |= {"clusters in both views": np.mean(shared)}
        rounded = {
            key: x if isinstance(x, str) else round(float(x), 1) for key, x in record.items()
        }
        print(json.dumps(rounded | {"images": len(scores)}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    run(main)
