"""Schedules against DINO's tables, written out with numpy."""

import numpy as np
import pytest

from croc.config import LossConfig, OptimConfig
from croc.method.schedules import settings_at, teacher_momentum, teacher_temperature


def table(base: float, final: float, epochs: int, per_epoch: int, warmup_epochs: int = 0):
    warmup = np.linspace(0, base, warmup_epochs * per_epoch)
    steps = np.arange(epochs * per_epoch - len(warmup))
    cosine = final + 0.5 * (base - final) * (1 + np.cos(np.pi * steps / len(steps)))
    return np.concatenate([warmup, cosine])


def test_rate_decay_and_momentum_follow_the_tables():
    optim = OptimConfig(batch=1024, epochs=30, warmup_epochs=3)
    loss = LossConfig()
    settings = [settings_at(step, optim, 7) for step in range(30 * 7)]
    np.testing.assert_allclose(
        [s.rate for s in settings], table(5e-4 * 4, 1e-5, 30, 7, 3), rtol=1e-12, atol=1e-18
    )
    np.testing.assert_allclose([s.weight_decay for s in settings], table(0.04, 0.4, 30, 7))
    np.testing.assert_allclose(
        [teacher_momentum(loss, s) for s in settings], table(0.996, 1.0, 30, 7)
    )
    assert [s.epoch for s in settings] == [step // 7 for step in range(30 * 7)]


@pytest.mark.parametrize("warmup", [0, 1, 2, 30])
def test_temperature_rises_by_whole_epochs(warmup: int):
    loss = LossConfig(temperature_warmup_epochs=warmup)
    expected = np.concatenate([np.linspace(0.04, 0.07, warmup), np.full(40 - warmup, 0.07)])
    if warmup == 1:
        expected[0] = 0.07  # one epoch of warm-up leaves nothing to warm
    got = [teacher_temperature(loss, epoch) for epoch in range(40)]
    np.testing.assert_allclose(got, expected)


def test_without_warmup_the_rate_starts_at_its_peak():
    optim = OptimConfig(batch=256, epochs=2, warmup_epochs=0)
    assert settings_at(0, optim, 5).rate == pytest.approx(5e-4)
