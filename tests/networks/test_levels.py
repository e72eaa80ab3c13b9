"""The head that knows the order of levels: exact, normalised, finite."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from partita.networks.levels import discretized_logistic, mixture_log_probabilities


def test_logistics_are_integrals():
    """Against the integral of the density over what rounds to each level."""
    for mean, scale in ((3.2, 0.7), (-1.0, 2.0), (9.7, 0.2), (4.0, 5.0)):
        numbers = torch.tensor([mean, math.log(scale)], dtype=torch.float64)
        ours = discretized_logistic(*numbers, 9).exp().numpy()
        edges = np.array([-np.inf, *(np.arange(8) + 0.5), np.inf])
        density = stats.logistic(mean, scale).pdf
        theirs = [
            integrate.quad(density, low, high, epsabs=1e-13)[0]
            for low, high in itertools.pairwise(edges)
        ]
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("levels", [2, 3, 17, 256])
def test_mixtures_sum_to_one(levels):
    torch.manual_seed(0)
    numbers = 3 * torch.randn(200, 15, dtype=torch.float64)
    for given, tolerance in ((numbers, 1e-12), (numbers.float(), 1e-5)):
        total = mixture_log_probabilities(given, levels).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=tolerance, rtol=0)


def test_gradients_of_mixtures():
    torch.manual_seed(0)
    numbers = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixture_log_probabilities(x, 7), numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_numbers_are_finite(dtype):
    extremes = torch.tensor([-1e30, -1e4, -30.0, 0.0, 30.0, 1e4, 1e30], dtype=dtype)
    numbers = torch.cartesian_prod(*[extremes] * 3).repeat_interleave(2, dim=-1).requires_grad_()
    answer = mixture_log_probabilities(numbers, 256)
    assert answer.dtype == torch.float32
    assert torch.isfinite(answer).all()
    answer.logsumexp(-1).sum().backward()
    torch.testing.assert_close(answer.logsumexp(-1), torch.zeros(len(answer)), atol=1e-4, rtol=0)
    numbers.grad = None
    mixture_log_probabilities(numbers, 256)[:, [0, 100, 255]].sum().backward()
    assert torch.isfinite(numbers.grad).all()


def test_tails_lose_no_digits():
    """Far from the mean a difference of two distribution functions would be 0."""
    mean, log_scale = torch.tensor([0.0]), torch.tensor([-1.0])
    ours = discretized_logistic(mean, log_scale, 256)[0]
    exact = discretized_logistic(mean.double(), log_scale.double(), 256)[0]
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-6)
    assert ours[200] < -500


def test_near_levels_are_told_apart_by_their_order():
    """One logistic has one top, and falls on both sides of it."""
    torch.manual_seed(0)
    falls = mixture_log_probabilities(torch.randn(50, 3), 17)[:, 1:-1].diff(dim=-1).sign()
    assert (falls.diff(dim=-1) <= 0).all()
