"""What a process refuses, and just not: betas, matrices, tables that are too large."""

from __future__ import annotations

import pytest
import torch

from partita.errors import InputError
from partita.processes.betas import make_betas
from partita.processes.ctmc import Rates
from partita.processes.gaussian import GaussianProcess
from partita.processes.matrices import make_transition


@pytest.mark.parametrize(("tokens", "steps"), [(1024, 1024), (2, 20_000)])
def test_the_largest_table_of_matrices(tokens, steps):
    """2^30 numbers, and 20,000 steps."""
    assert make_transition("gaussian", tokens, steps=steps).steps == steps
    with pytest.raises(InputError, match="dense matrices"):
        make_transition("gaussian", tokens, steps=steps + 1)


def test_columns_of_rates_sum_to_zero():
    """Up to rounding, which is relative to the largest rate, and absolute below 1."""
    q = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    wrong = torch.tensor([[2e-9, 0.0], [0.0, 0.0]], dtype=torch.float64)
    for scale, fits in ((1.0, False), (0.1, False), (10.0, True)):
        if fits:
            Rates(scale * q + wrong)
        else:
            with pytest.raises(InputError, match="q: every column must sum to 0"):
                Rates(scale * q + wrong)
    assert Rates(wrong / 2).states == 2  # 1e-9 itself


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 1), (2, 2, 2), (0, 0)])
def test_rates_are_a_square_matrix(shape):
    with pytest.raises(InputError, match="q: must be a square matrix"):
        Rates(torch.zeros(shape))


@pytest.mark.parametrize(("worst", "fits"), [(0.0, False), (1.0, False), (0.999, True)])
def test_betas_of_a_gaussian_lie_between_0_and_1(worst, fits):
    betas = torch.tensor([0.1, worst], dtype=torch.float64)
    if fits:
        assert GaussianProcess(betas).steps == 2
    else:
        with pytest.raises(InputError, match="betas: must lie between 0 and 1"):
            GaussianProcess(betas)


def test_default_betas_of_few_steps_stay_below_1():
    """Those of the paper times 1000 / T, and at most 0.999."""
    torch.testing.assert_close(
        make_betas("linear", 10, 1000), torch.linspace(0.01, 0.999, 10, dtype=torch.float64)
    )
    torch.testing.assert_close(
        make_betas("linear", 500, 1000), torch.linspace(2e-4, 0.04, 500, dtype=torch.float64)
    )


@pytest.mark.parametrize("betas", [[], [1, 0], [[0.1, 0.2]]])
def test_betas_are_a_name_a_schedule_or_a_float_vector(betas):
    with pytest.raises(InputError, match="betas: must be a name, a schedule or a float tensor"):
        make_betas(torch.tensor(betas), None, 1000)


@pytest.mark.parametrize(("size", "tokens"), [(3, 3), (4, 3), (2, 2)])
def test_own_matrices_may_have_a_state_for_masks(size, tokens):
    """They have it if they have one state more than there are tokens."""
    transition = make_transition(torch.full((size, size), 1 / size), 3, steps=5)
    assert (transition.tokens, transition.size) == (tokens, size)
