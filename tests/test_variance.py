"""Shares of the tokens' variance, against tokens that were made to have them."""

import json

import pytest
import torch

from benchmarks.variance import main, shares_of


def made(position: float, image: float, own: float) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    shapes = (1, 16, 8, 8), (64, 16, 1, 1), (64, 16, 8, 8)
    weights = (position, image, own)
    parts = (w**0.5 * torch.randn(s, generator=g) for w, s in zip(weights, shapes))
    return sum(parts, start=torch.zeros(64, 16, 8, 8))


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.25, 0.25)])
def test_the_shares_that_tokens_were_made_of_are_found(weights):
    found = shares_of(made(*weights).split(10))
    # A mean over 64 tokens keeps a 64th of the rest.
    assert found.position == pytest.approx(weights[0], abs=0.05)
    assert found.image == pytest.approx(weights[1], abs=0.05)


def test_scale_and_offset_do_not_matter():
    tokens = made(0.3, 0.3, 0.4)
    other = tokens * torch.linspace(0.1, 50, 16)[:, None, None] + 7
    assert shares_of([other]).position == pytest.approx(shares_of([tokens]).position)
    assert shares_of([other]).image == pytest.approx(shares_of([tokens]).image)


def test_a_constant_feature_is_left_out():
    tokens = made(1, 0, 0)
    tokens[:, 0] = 3.0
    assert shares_of([tokens]).position == pytest.approx(1.0)


def test_the_command_prints_a_line_for_each_pair(capsys):
    weights = "random:vit_tiny_patch16_224"
    main(["--weights", weights, "--data", "scenes", "--image-px", "32"])
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["weights"], told["data"]) == (weights, "scenes")
    assert 0 < told["position"] < 1
    assert 0 < told["image"] < 1
