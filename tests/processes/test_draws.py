"""The draws of corruptions: which numbers hide a token, and times that are denser near 0."""

from __future__ import annotations

import math

import pytest
import torch

from partita.processes.draws import crowded_times, doubled_ends, even_steps, hide_independently
from partita.randomness import Noise, Purpose


def test_a_token_is_hidden_by_numbers_below_its_rate():
    """A rate that is itself one of the numbers hides all smaller ones, and not that one."""
    noise, is_token = Noise.for_batch(3, 1), torch.ones(1, 50, dtype=torch.bool)
    u = noise.uniform(Purpose.MASK, 7, torch.arange(50)[None])
    for position in (0, 17, 49):
        rate = u[0, position : position + 1]
        assert torch.equal(hide_independently(rate, is_token, noise, 7), u < rate)


def test_steps_are_even_and_reach_both_ends():
    steps = even_steps(Noise.for_batch(0, 40), 5, 40, 4)
    assert torch.bincount(steps, minlength=6).tolist() == [0, 10, 10, 10, 10, 0]


def test_the_two_ends_count_twice():
    index = torch.tensor([0.0, 1.0, 3.0, 4.0])
    assert doubled_ends(index, 4).tolist() == [2, 1, 1, 2]
    assert doubled_ends(index, torch.tensor([0, 1, 4, 5])).tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize("first", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
def test_crowded_times_are_two_halves(first, c):
    """Uniform times, then those whose power c is uniform; `share` is t times the density."""
    u = torch.tensor([0.0, 0.2, 0.5, 0.6, 0.9, 1.0], dtype=torch.float64)
    t, log_t, share = crowded_times(u, c, first)
    even = first + (1 - first) * 2 * u[:3]
    crowded = (first**c + (1 - first**c) * (2 * u[3:] - 1)) ** (1 / c)
    torch.testing.assert_close(t, torch.cat([even, crowded]), rtol=1e-12, atol=0)
    torch.testing.assert_close(log_t, t.log(), rtol=1e-12, atol=1e-15)
    density = (1 / (1 - first) + c * t ** (c - 1) / (1 - first**c)) / 2
    known = t > 0  # the density may be infinite at 0
    torch.testing.assert_close(share[known], (t * density)[known], rtol=1e-12, atol=0)


@pytest.mark.parametrize("first", [0.0, 0.1])
def test_crowded_times_estimate_integrals(first):
    """The mean of f / density over even numbers is the integral of f, here of sqrt(t)."""
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    t, _, share = crowded_times(u, 0.7, first)
    mean = float((t**1.5 / share).mean())
    assert mean == pytest.approx((1 - first**1.5) / 1.5, rel=1e-4)


def test_logarithms_of_times_that_underflow():
    t, log_t, _ = crowded_times(torch.tensor([0.75], dtype=torch.float64), 1e-4)
    assert float(t) == 0
    assert float(log_t) == pytest.approx(math.log(0.5) / 1e-4, rel=1e-12)
