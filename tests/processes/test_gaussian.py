"""Draws of a Gaussian process, from the equations of DDPM, with the sign of their noise."""

from __future__ import annotations

import torch

from partita.processes.gaussian import make_process

STEPS = 6
PROCESS = make_process("cosine", STEPS)
X, NOISE = (
    torch.linspace(-1, 1, 6).double().view(2, 3),
    torch.linspace(3, -2, 6).double().view(2, 3),
)


def test_the_marginal():
    """Eq. 4, with abar as a product of 1 - beta."""
    abar = (1 - PROCESS.betas).cumprod(0)
    for t in range(1, STEPS + 1):
        expected = abar[t - 1].sqrt() * X + (1 - abar[t - 1]).sqrt() * NOISE
        torch.testing.assert_close(PROCESS.marginal(X, torch.full((2,), t), NOISE), expected)


def test_the_transition():
    """Eq. 2; over several steps with the product of their 1 - beta."""
    for t in range(1, STEPS + 1):
        for s in range(t):
            kept = (1 - PROCESS.betas[s:t]).prod()
            expected = kept.sqrt() * X + (1 - kept).sqrt() * NOISE
            rows = torch.full((2,), s), torch.full((2,), t)
            torch.testing.assert_close(PROCESS.transition(X, *rows, NOISE), expected)
