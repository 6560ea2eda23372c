"""Keyed draws: uniform, independent of batch and device, never shared between purposes."""

import math

import torch

from croc.method.randomness import derive, sample_key, uniform


def splitmix64(state: int) -> int:
    """Steele and others' generator, written from their definition: the state's next output."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def sample_keys(count: int = 64) -> torch.Tensor:
    return torch.tensor([sample_key(0, 0, index) for index in range(count)])


def test_draws_are_splitmix64_of_the_derived_key():
    base = int(derive(sample_keys(1), "test")[0]) % 2**64
    expected, state = [], base
    for _ in range(6):
        expected.append(((splitmix64(state) >> 41) + 0.5) / 2**23)
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert uniform(sample_keys(1), "test", 2, 3).flatten().tolist() == expected


def test_sample_keys_differ_in_each_part():
    parts = [(s, e, i) for s in range(4) for e in range(10) for i in range(50)]
    made = {sample_key(*part) for part in parts}
    assert len(made) == len(parts)
    assert all(-(2**63) <= key < 2**63 for key in made)


def test_draws_depend_only_on_key_and_purpose():
    together = uniform(sample_keys(), "crop", 100)
    assert torch.equal(together[13:14], uniform(sample_keys()[13:14], "crop", 100))
    assert not torch.isin(together, uniform(sample_keys(), "color", 100)).float().mean() > 0.01


def test_draws_are_uniform_and_inside_the_open_interval():
    draws = uniform(sample_keys(2000), "test", 50).double()
    assert draws.min() > 0
    assert draws.max() < 1
    histogram = torch.histc(draws, bins=20, min=0, max=1) / draws.numel()
    assert (histogram - 0.05).abs().max() < 6 * math.sqrt(0.05 / draws.numel())
    neighbors = torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))
    assert neighbors[0, 1].abs() < 0.015
