"""Quality against steps: the shares that steps reveal, and the pictures."""

from __future__ import annotations

import pytest
import torch

from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from partita.samplers import sample
from partita.studies.steps import (
    Quality,
    draw_comparison,
    equal_quality,
    revealed,
    seconds_of_token,
)

LENGTH, STEPS = 2000, 5


@pytest.mark.parametrize("schedule", ["linear", "cosine", "arccos", "log-linear"])
def test_shares_that_steps_reveal(schedule):
    """As those of a sampler that fills many positions."""
    shares = torch.tensor(revealed(schedule, STEPS), dtype=torch.float64)
    assert float(shares.sum()) == pytest.approx(1)
    sizes = TransformerOptions(length=LENGTH, width=8, depth=1, heads=1)
    counts = torch.zeros(STEPS)

    def count(step):
        counts[step.index] += len(step.rows)

    model = METHODS["mdlm"].build(sizes, 2)
    sample(model, 2, steps=STEPS, schedule=schedule, callback=count, seed=1)
    found = counts / (2 * LENGTH)
    error = (shares * (1 - shares) / (2 * LENGTH)).sqrt()
    assert bool(((found - shares).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("timed", [False, True])
def test_the_picture(timed, tmp_path):
    rows = [Quality("a", n, 2.0 + 1 / n, 0.1, 2.5, 0.1, 100.0 / n) for n in (4, 8)]
    draw_comparison(rows, tmp_path / "steps.png", timed=timed)
    assert (tmp_path / "steps.png").read_bytes()[:4] == b"\x89PNG"


def curve(model, points):
    """Steps, bits and seconds of a token."""
    return [Quality(model, n, bits, 0.01, 2.5, 0.01, 1 / seconds) for n, bits, seconds in points]


def test_the_time_of_a_quality():
    rows = curve("a", [(16, 2.5, 4.0), (4, 3.5, 1.0), (8, 3.0, 2.0), (32, 2.6, 8.0)])
    for row in rows[:3]:  # where it was measured, what was measured
        assert seconds_of_token(rows, row.judge_bits) == pytest.approx(1 / row.tokens_per_second)
    assert seconds_of_token(rows, 3.25) == pytest.approx(2**0.5)  # half way in the logarithm
    assert seconds_of_token(rows, 2.6) == pytest.approx(2 * 2**0.8)  # before it gets worse again
    assert seconds_of_token(rows, 2.4) is None  # never so good
    assert seconds_of_token(rows, 3.6) is None  # better in the fewest steps: how much, who knows
    assert seconds_of_token([], 3.0) is None


def test_speeds_at_equal_quality():
    """A model that takes half the time of a step, and needs twice the steps: no faster at all."""
    slow = curve("slow", [(n, 2 + 1 / n, n) for n in (4, 8, 16)])
    quick = curve("quick", [(n, 2 + 2 / n, n / 2) for n in (8, 16, 32)])
    found = equal_quality(quick, slow)
    assert [(e.model, e.other, e.steps) for e in found] == [
        ("quick", "slow", n) for n in (4, 8, 16)
    ]
    assert [e.times for e in found] == pytest.approx([1, 1, 1])
    twice = [Quality(**{**vars(r), "tokens_per_second": 2 * r.tokens_per_second}) for r in quick]
    assert [e.times for e in equal_quality(twice, slow)] == pytest.approx([2, 2, 2])
    for e in found:  # half an error more or less than was measured, in the logarithm of time
        inside = [side for side in (e.low, e.high) if side is not None]
        assert all(side == pytest.approx(1, rel=0.7) for side in inside)
    assert found[1].low < found[1].times < found[1].high
    assert [e.times is None for e in equal_quality(quick[:2], slow)] == [False, False, True]
    best = curve("best", [(2, 2.0, 1.0), (4, 1.9, 2.0)])
    assert [(e.times, e.better) for e in equal_quality(best, slow)] == [
        (4.0, True),
        (8.0, True),
        (16.0, True),
    ]
