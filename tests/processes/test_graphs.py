"""Chains of score models, from their definitions by matrix exponentials."""

from __future__ import annotations

import pytest
import torch

from partita.processes.ctmc import Rates
from partita.processes.graphs import Absorbing, Uniform

UNEVEN = torch.tensor([[-1.5, 0.3, 0.9], [1.3, -0.5, 0.1], [0.2, 0.2, -1.0]], dtype=torch.float64)
CHAINS = {
    "uneven": Rates(UNEVEN),
    "uneven, two tokens": Rates(UNEVEN, tokens=2),
    "uniform": Uniform(3),
    "uniform, as a matrix": Rates(Uniform(3).matrix()),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("first", "last"), [(0.0, 5.0), (0.2, 1.0), (0.9, 1.7)])
def test_end_terms(name, first, last):
    """KL(q(z_1 | x) || stationary) - E log p(x | z_0): each token is a guess among all tokens."""
    chain = CHAINS[name]
    early, late = (torch.linalg.matrix_exp(n * chain.matrix()) for n in (first, last))
    stationary = torch.linalg.matrix_exp(200 * chain.matrix())[:, 0]
    for x in range(chain.tokens):
        guess = early[:, x] / early[:, : chain.tokens].sum(-1)
        expected = (late[:, x] * (late[:, x] / stationary).log()).sum()
        reached = early[:, x] > 0
        expected -= (early[:, x] * guess.log())[reached].sum()
        sigmas = (torch.tensor([n], dtype=torch.float64) for n in (first, last))
        found = chain.end_nats(torch.tensor([x]), *sigmas)
        torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-12)


def test_noise_that_ends_in_masks():
    """The absorbing chain's noise hides (1 - alpha(t)) / (1 - alpha(1)) of the tokens."""
    chain = Absorbing(4)
    sigma, last = (torch.tensor(n, dtype=torch.float64) for n in ([0.0, 0.3, 1.2], [1.2] * 3))
    hidden = -torch.expm1(-chain.noise_to_prior(sigma, last))
    torch.testing.assert_close(hidden, torch.expm1(-sigma) / torch.expm1(-last))
    assert float(hidden[-1]) == 1
