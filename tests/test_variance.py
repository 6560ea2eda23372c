"""Shares of the tokens' variance, against tokens that were made to have them."""

import json

import pytest
import torch

from benchmarks.variance import Reweighted, main, shares_of


def made(position: float, image: float, own: float) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    shapes = (1, 16, 8, 8), (64, 16, 1, 1), (64, 16, 8, 8)
    weights = (position, image, own)
    parts = (w**0.5 * torch.randn(s, generator=g) for w, s in zip(weights, shapes))
    return sum(parts, start=torch.zeros(64, 16, 8, 8))


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.25, 0.25)])
def test_the_shares_that_tokens_were_made_of_are_found(weights):
    found, _ = shares_of(made(*weights).split(10))
    # A mean over 64 tokens keeps a 64th of the rest.
    assert found.position == pytest.approx(weights[0], abs=0.05)
    assert found.image == pytest.approx(weights[1], abs=0.05)


def test_scale_and_offset_do_not_matter():
    tokens = made(0.3, 0.3, 0.4)
    other = tokens * torch.linspace(0.1, 50, 16)[:, None, None] + 7
    (ours, _), (theirs, _) = shares_of([other]), shares_of([tokens])
    assert ours.position == pytest.approx(theirs.position)
    assert ours.image == pytest.approx(theirs.image)


def test_a_constant_feature_is_left_out():
    tokens = made(1, 0, 0)
    tokens[:, 0] = 3.0
    found, _ = shares_of([tokens])
    assert found.position == pytest.approx(1.0)


def test_the_command_prints_a_line_for_each_pair(capsys):
    weights = "random:vit_tiny_patch16_224"
    main(["--weights", weights, "--data", "scenes", "--image-px", "32"])
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["weights"], told["data"]) == (weights, "scenes")
    assert 0 < told["position"] < 1
    assert 0 < told["image"] < 1


class Given:
    """A backbone that gives what it was told to."""

    name, stride_px = "given", 16

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        return self._tokens


def test_tokens_of_other_shares_have_them():
    tokens = made(0.4, 0.2, 0.4)
    _, place = shares_of(tokens.split(10))
    torch.testing.assert_close(place, tokens.double().mean(dim=0))
    none = torch.zeros(1)

    def shares(image: float, own: float) -> tuple[float, float]:
        found, _ = shares_of([Reweighted(Given(tokens), place, image, own).features(none)])
        return found.position, found.image

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
