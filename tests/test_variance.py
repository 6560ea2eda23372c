"""The benchmark of the tokens' variance, against tokens of known shares."""

import json

import pytest
import torch

from benchmarks.variance import Reweighted, main
from croc.train.gauges import token_statistics
from tests.test_gauges import planted


def test_the_command_prints_a_line_for_each_pair(capsys):
    weights = "random:vit_tiny_patch16_224"
    main(["--weights", weights, "--data", "scenes", "--image-px", "32"])
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["weights"], told["data"]) == (weights, "scenes")
    assert 0 < told["place"] < 1
    assert 0 < told["image"] < 1
    assert 1 < told["rank"] < 192


class Given:
    """A backbone that gives what it was told to."""

    name, stride_px = "given", 16

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        return self._tokens


def test_tokens_of_other_shares_have_them():
    tokens = planted(0.4, 0.2, 0.4)
    _, place = token_statistics(tokens.split(10))
    torch.testing.assert_close(place, tokens.double().mean(dim=0))
    none = torch.zeros(1)

    def shares(image: float, own: float) -> tuple[float, float]:
        found, _ = token_statistics([Reweighted(Given(tokens), place, image, own).features(none)])
        return found.place, found.image

    assert shares(1, 1) == pytest.approx((0, 1 / 3), abs=0.03)
    assert shares(2, 1) == pytest.approx((0, 2 / 3), abs=0.03)
    assert shares(1, 0) == pytest.approx((0, 1), abs=1e-6)


def test_kmeans_is_told_for_each_kind_of_tokens(capsys):
    weights = "random:vit_tiny_patch16_224"
    main(["--weights", weights, "--data", "scenes:8", "--image-px", "96", "--kmeans"])
    told = json.loads(capsys.readouterr().out)
    scores = {kind: score for kind, score in told.items() if kind.startswith(("kmeans", "within"))}
    assert len(scores) == 8
    for mean, deviation in scores.values():
        assert 0 < mean < 100
        assert 0 <= deviation < 50
