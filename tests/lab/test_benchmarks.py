"""The benchmarks run at tiny sizes; shares of a variance are right where they are known."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import chosen_k, folds, input, variance
from tests.eval.fakes import Patches

TINY_VIT = "random:vit_tiny_patch16_224"


def test_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = "--workers 1 --images 12 --size-px 64 48 --max-side-px 40 --batch 4 --steps 6"
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
        # The means of three seeds differ by chance, too.
        (spread(3, 200, 100), (1, 0, 0, 0), (0.02, 0.01, 0.01, 0.02)),
        # The image's own K, from 0 to 7 (variance 21/4), and as much again by chance.
        (
            torch.arange(8).repeat(25)[None, :, None] + spread(4, 200, 50),
            (0.5, 0.5, 0, 0),
            (0.02,) * 4,
        ),
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


def test_chosen_k(run: Path, capsys: pytest.CaptureFixture[str]):
    chosen_k.main(["--run", str(run), "--images", "5", "--seeds", "3"])
    record = json.loads(capsys.readouterr().out)
    assert sum(record["histogram"].values()) == pytest.approx(1)
    assert set(map(int, record["histogram"])) <= set(range(2, 6))  # K_start is 5


def test_each_image_is_scored_by_a_layer_that_has_not_seen_it():
    pairs = folds.split_into_folds(Patches(12, 0), 5)
    assert sorted(number for _, scored in pairs for number in scored.numbers) == list(range(12))
    for train, scored in pairs:
        assert sorted(train.numbers + scored.numbers) == list(range(12))


def test_folds(capsys: pytest.CaptureFixture[str]):
    options = "--data scenes --image-px 32 --steps 5 --seeds 2 --max-images 9 --folds 3"
    folds.main(["--weights", TINY_VIT, *options.split()])
    record = json.loads(capsys.readouterr().out)
    assert (record["weights"], record["data"], record["images"]) == (TINY_VIT, "scenes", 9)
    assert 0 < record["linear"] < 100
    assert 0 < record["kmeans"] < 100


def test_variance(capsys: pytest.CaptureFixture[str]):
    variance.main(["--weights", TINY_VIT, "--data", "scenes:8", "--image-px", "96"])
    record = json.loads(capsys.readouterr().out)
    assert (record["weights"], record["data"]) == (TINY_VIT, "scenes")
    assert 0 < record["position"] < 1
    assert 0 < record["image"] < 1
    assert 1 < record["rank"] < 192
