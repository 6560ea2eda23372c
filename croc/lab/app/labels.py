"""Labels of patches, as labels.json and the page have them, and the head that is fitted to them.

labels.json:

{"classes": [{"name": "background", "color": "#808080"}, …],
 "clicks": [{"photo": "a/b.jpg", "x": 0.31, "y": 0.72, "class": 0}, …]}

x and y are shares of the photograph's width and height, classes are numbered from 0.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from croc.eval.features import Moments
from croc.io import replacing
from croc.lab.app.photos import Photos

FILE = "labels.json"
START = {"background": "#7a7f87", "object": "#0c97ff"}
"""The classes of a new folder and their colors."""
DECAY = 0.1
"""Weight of the squared weights of the linear layer: of 0.1, 0.01 and 0.001 the best in simulated
labeling, though they differ little (dev/LOG.md)."""
NEVER = -1e4  # the logit of a class without clicks


def read_labels(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.exists():
        classes = [{"name": name, "color": color} for name, color in START.items()]
        return {"classes": classes, "clicks": []}
    return json.loads(path.read_text(encoding="utf-8"))


def save_labels(folder: Path, labels: dict[str, Any]) -> None:
    with replacing(folder / FILE) as partial:
        partial.write_text(json.dumps(labels, indent=1, ensure_ascii=False) + "\n", "utf-8")


def clicked_tokens(
    photos: Photos, clicks: list[dict[str, Any]]
) -> tuple[Float[Tensor, "n C"], Int64[Tensor, "n"]]:
    """The tokens of the clicked patches and their classes; of photographs that are ready."""
    tokens, classes = [], []
    for click in clicks:
        index = photos.number.get(click["photo"])
        if index in photos.sizes:
            maps = photos.tokens(index)
            row, column = (int(click[axis] * n) for axis, n in zip("yx", maps.shape[1:]))
            tokens.append(maps[:, row, column].float())
            classes.append(click["class"])
    return torch.stack(tokens) if tokens else torch.zeros(0, 1), torch.tensor(classes).long()


def fit_head(
    tokens: Float[Tensor, "n C"], classes: Int64[Tensor, "n"], count: int, moments: Moments
) -> nn.Conv2d:
    """Logistic regression on standardized tokens, as one layer on the tokens themselves.

    All classes weigh the same, however many clicks they have; one without clicks is never
    predicted.
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
