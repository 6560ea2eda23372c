"""The benchmarks run at tiny sizes, and their numbers are right on inputs of known answers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import chosen_k, folds, input, variance
from croc.eval.datasets import Labeled
from croc.eval.evaluate import Machine
from croc.eval.protocols import KmeansConfig, LinearConfig
from croc.train.loop import pretrain
from tests.tiny import tiny_config

ROOT = Path(__file__).parent.parent.parent
TINY_VIT = "random:vit_tiny_patch16_224"


def test_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = "--workers 1 --images 12 --size-px 64 48 --canvas-px 40 --batch 4 --steps 6"
    options = [*sizes.split(), "--step-ms", "0", "20", "--device", "cpu"]
    input.main([*options, "--to", str(tmp_path / "x.json")])
    printed = capsys.readouterr().out
    free, busy = json.loads((tmp_path / "x.json").read_text())["images_per_s"]
    for source in ("pack", "tar shard", "JPEG files"):
        assert busy[source] <= 4 / 0.020
        assert free[source] > 0
        assert source in printed


def spread(*shape: int) -> torch.Tensor:
    """K from 2 to 9, uniform."""
    return torch.randint(2, 10, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("k", "shares", "bounds"),
    [
        (spread(1, 50, 1).expand(50, 50, 50), (0, 1, 0, 0), (1e-9,) * 4),
        (spread(1, 1, 50).expand(50, 50, 50), (0, 0, 1, 0), (1e-9,) * 4),
        # The means of three seeds differ by chance, too.
        (spread(3, 200, 100), (1, 0, 0, 0), (0.02, 0.01, 0.01, 0.02)),
        # The image's own K, from 0 to 7 (variance 21/4), and as much again by chance.
        (
            torch.arange(8).repeat(25)[None, :, None] + spread(4, 200, 50),
            (0.5, 0.5, 0, 0),
            (0.02,) * 4,
        ),
        (torch.full((3, 4, 5), 7), (0, 0, 0, 0), (0,) * 4),
    ],
)
def test_shares_of_the_variance_of_k(
    k: torch.Tensor, shares: tuple[float, ...], bounds: tuple[float, ...]
):
    result = chosen_k.analyze("run", k)
    for name, share, bound in zip(("seeds", "images", "heads", "both"), shares, bounds):
        assert result[name] == pytest.approx(share, abs=bound), name
    assert result["mean"] == pytest.approx(k.double().mean().item())
    assert result["variance"] == pytest.approx(k.double().var(correction=0).item())


def test_chosen_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = pretrain(tiny_config(tmp_path / "run", stop_after_steps=1, report=False), "tiny")
    capsys.readouterr()
    chosen_k.main(["--run", str(run), "--images", "5", "--seeds", "3"])
    record = json.loads(capsys.readouterr().out)
    assert sum(record["histogram"].values()) == pytest.approx(1)
    assert set(map(int, record["histogram"])) <= set(range(2, 6))  # K_start is 5


class Halves:
    """Twelve images of two shades, each of them a class."""

    classes = ("dark", "bright")

    def __len__(self) -> int:
        return 12

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Labeled:
        labels = np.zeros((32, 32), np.uint8)
        labels[:, : 8 + 8 * (index % 3)] = 1
        return Labeled((200 * labels[..., None]).repeat(3, axis=2), labels, self.name(index))


class Brightness:
    """Two features per patch of 4 px: its brightness and noise, or noise alone."""

    name, stride_px = "brightness", 4

    def __init__(self, sees: bool) -> None:
        self.sees = sees

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        noise = torch.rand(len(images), 2, 8, 8, generator=torch.Generator().manual_seed(0))
        seen = torch.nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 4)
        return torch.cat([seen, noise[:, 1:]], dim=1) if self.sees else noise


def test_each_image_is_scored_by_a_layer_that_has_not_seen_it():
    pairs = folds.split_into_folds(Halves(), 5)
    assert sorted(number for _, scored in pairs for number in scored.numbers) == list(range(12))
    for train, scored in pairs:
        assert sorted(train.numbers + scored.numbers) == list(range(12))


@pytest.mark.parametrize(("sees", "least", "most"), [(True, 99, 100), (False, 0, 60)])
def test_fold_scores_depend_on_the_features(sees: bool, least: float, most: float):
    linear = LinearConfig(
        image_px=32, blocks=1, standardize=True, rates=(0.1,), batch=4, epochs=None, steps=60,
        crop=None, train_px=8, score_px=8,
    )  # fmt: skip
    kmeans = KmeansConfig(on="tokens", image_px=32, label_px=8, pca=2, seeds=3)
    machine = Machine(torch.device("cpu"), torch.float32, workers=0)
    scores = folds.score(Brightness(sees), Halves(), linear, kmeans, 4, machine)
    assert least <= scores["linear"] <= most
    assert least <= scores["kmeans"] <= most


def test_folds(capsys: pytest.CaptureFixture[str]):
    options = "--data scenes --image-px 32 --steps 5 --seeds 2 --most 9 --folds 3"
    folds.main(["--weights", TINY_VIT, *options.split()])
    record = json.loads(capsys.readouterr().out)
    assert (record["weights"], record["data"], record["images"]) == (TINY_VIT, "scenes", 9)
    assert 0 < record["linear"] < 100
    assert 0 < record["kmeans"] < 100


def test_variance(capsys: pytest.CaptureFixture[str]):
    variance.main(["--weights", TINY_VIT, "--data", "scenes:8", "--image-px", "96"])
    record = json.loads(capsys.readouterr().out)
    assert (record["weights"], record["data"]) == (TINY_VIT, "scenes")
    assert 0 < record["place"] < 1
    assert 0 < record["image"] < 1
    assert 1 < record["rank"] < 192
