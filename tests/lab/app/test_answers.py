"""Answers equal what croc's own functions give for the same boxes."""

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image

from croc.method.croc import cluster_tokens
from croc.method.photometric import normalize
from croc.method.randomness import sample_key
from croc.method.types import Views
from croc.method.views import Crops, crop, patch_centers
from tests.lab.app.serving import BOXES, Served


def pixels_of(url: str) -> np.ndarray:
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.mode == "L"
        return np.asarray(image)


def views_of(served: Served) -> Views:
    pixels, model = served.server.scenes[0].pixels, served.server.models[0]
    places = torch.tensor(BOXES).float()[:, None]
    flips = torch.zeros(2, 1, dtype=torch.bool)
    canvas = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # a scene is square
    views = normalize(crop(canvas, Crops(places, flips), model.view_px))
    sizes = torch.tensor([pixels.shape[:2]])
    return Views(views, patch_centers(places, flips, sizes, model.view_px, 8))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"tokens": "keys", "k_start": 9, "position_weight": 0.0, "seed": 3},
    {"tokens": "queries", "sharpness": 3.5},
    {"tokens": "last", "position_weight": "inf", "k_start": 2},
]


@torch.no_grad()
@pytest.mark.parametrize("changes", SETTINGS)
def test_clusters_equal_locate(served: Served, changes: dict[str, Any]) -> None:
    fields = {name: value for name, value in changes.items() if name != "seed"}
    if "position_weight" in fields:
        fields["position_weight"] = float(fields["position_weight"])
    model, views = served.server.models[0], views_of(served)
    config = replace(model.cluster, **fields)
    tokens = model.backbone.forward_tokens(views.pixels, config.tokens)
    keys = torch.tensor([sample_key(changes.get("seed", 0), 0, 0)])
    clusters = cluster_tokens(tokens, views, keys, config)
    answer = served.ask("clusters", **changes).json
    assert [head["k"] for head in answer["heads"]] == clusters.count[0].tolist()
    assert [head["shared"] for head in answer["heads"]] == clusters.valid[0].sum(-1).tolist()
    assert [head["cost"] for head in answer["heads"]] == pytest.approx(clusters.cost[0].tolist())
    largest = clusters.assignments[:, 0].amax(dim=-1).mean(dim=(0, 2))
    assert [head["share"] for head in answer["heads"]] == pytest.approx(largest.tolist())
    columns = answer["columns"]
    shares = clusters.assignments[:, 0, ..., :columns]
    expected = rearrange(shares, "m h (r c) k -> (h m r) (k c)", r=answer["grid"]) * 255
    assert np.abs(pixels_of(answer["maps"]) - expected.numpy()).max() <= 0.51


def test_trace_contains_the_chosen_clusters(served: Served) -> None:
    head = 2
    clusters = served.ask("clusters", k_start=7).json
    trace = served.ask("trace", k_start=7, head=head).json
    assert [step["k"] for step in trace["steps"]] == [7, 6, 5, 4, 3, 2]
    assert trace["chosen"] == clusters["heads"][head]["k"]
    number = 7 - trace["chosen"]
    chosen, grid = trace["steps"][number], trace["grid"]
    assert chosen["cost"] == pytest.approx(clusters["heads"][head]["cost"])
    assert chosen["cost"] == min(step["cost"] for step in trace["steps"])
    assert chosen["valid"] == clusters["heads"][head]["valid"]
    assert chosen["share"] == pytest.approx(clusters["heads"][head]["share"])
    width = trace["chosen"] * grid
    rows = slice(2 * number * grid, 2 * (number + 1) * grid)
    here = pixels_of(trace["maps"])[rows, :width]
    there = pixels_of(clusters["maps"])[2 * head * grid : 2 * (head + 1) * grid, :width]
    assert np.array_equal(here, there)


@torch.no_grad()
def test_similarities_are_cosines(served: Served) -> None:
    answer = served.ask("similarity", head=1, view=1, patch=6).json
    views = views_of(served)
    heads = served.server.models[0].backbone.forward_tokens(views.pixels, "values").heads[:, 0, 1]
    expected = torch.cosine_similarity(heads, heads[1, 6], dim=-1).reshape(8, 4)
    low = answer["low"]
    cosines = low + pixels_of(answer["crops"]) / 255 * (1 - low)
    assert np.abs(cosines - expected.numpy()).max() < 0.005
    assert pixels_of(answer["crops"])[5, 2] == 255  # itself
    assert pixels_of(answer["whole"]).shape == (8, 8)
    assert min(pixels_of(answer["crops"]).min(), pixels_of(answer["whole"]).min()) == 0
