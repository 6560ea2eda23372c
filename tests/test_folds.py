"""Scores in folds of a training part: what each fold holds, and that they tell good from bad."""

import json

import numpy as np
import pytest
import torch

from benchmarks.folds import main, score, split_into_folds
from croc.errors import UserError
from croc.eval.datasets import Labelled
from croc.eval.evaluate import Machine
from croc.eval.protocols import KmeansConfig, LinearConfig

LINEAR = LinearConfig(
    image_px=32, blocks=1, standardise=True, rates=(0.1,), batch=4, epochs=None, steps=60,
    crop=None, train_px=8, score_px=8,
)  # fmt: skip
KMEANS = KmeansConfig(reading="tokens", image_px=32, label_px=8, pca=2, seeds=3)
HERE = Machine(torch.device("cpu"), torch.float32, workers=0)


class Halves:
    """Twelve images of two colours, each a class of its own."""

    classes = ("dark", "bright")

    def __len__(self) -> int:
        return 12

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Labelled:
        labels = np.zeros((32, 32), np.uint8)
        labels[:, : 8 + 8 * (index % 3)] = 1
        return Labelled((200 * labels[..., None]).repeat(3, axis=2), labels, self.name(index))


class Brightness:
    """Two features a patch of 4 px: how bright it is, and noise; or noise alone."""

    name, stride_px = "brightness", 4

    def __init__(self, sees: bool) -> None:
        self.sees = sees

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        noise = torch.rand(len(images), 2, 8, 8, generator=torch.Generator().manual_seed(0))
        seen = torch.nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 4)
        return torch.cat([seen, noise[:, 1:]], dim=1) if self.sees else noise


def test_every_image_is_scored_once_by_a_layer_that_has_not_seen_it():
    folds = split_into_folds(Halves(), 5)
    assert sorted(number for _, held in folds for number in held.numbers) == list(range(12))
    for train, held in folds:
        assert sorted(train.numbers + held.numbers) == list(range(12))


@pytest.mark.parametrize("count", [1, 13])
def test_folds_without_an_image_to_train_on_or_to_score_are_refused(count: int):
    with pytest.raises(UserError, match=r"--folds must be in 2 … 12"):
        split_into_folds(Halves(), count)


@pytest.mark.parametrize(("sees", "least", "most"), [(True, 99, 100), (False, 0, 60)])
def test_scores_are_those_of_what_the_features_tell(sees: bool, least: float, most: float):
    found = score(Brightness(sees), Halves(), LINEAR, KMEANS, 4, HERE)
    assert least <= found.linear <= most
    assert least <= found.kmeans <= most


def test_the_command_prints_a_line_for_each_pair(capsys):
    weights = ["random:vit_tiny_patch16_224"]
    asked = ["--data", "scenes", "--image-px", "32", "--steps", "5", "--seeds", "2", "--most", "9"]
    main(["--weights", *weights, *asked, "--folds", "3"])
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["weights"], told["data"], told["images"]) == (weights[0], "scenes", 9)
    assert 0 < told["linear"] < 100
    assert 0 < told["kmeans"] < 100
