"""The absorbing (masking) process of MDLM, MD4 and related methods.

A token x is visible at time t with probability alpha_t, and otherwise it is the mask m.

    marginal      q(z_t | x)      = alpha_t x + (1 - alpha_t) m
    transition    q(z_t | z_s)    = (alpha_t / alpha_s) z_s + (1 - alpha_t / alpha_s) m
    posterior     q(z_s | z_t, x) = z_t if visible, else
                                    ((alpha_s - alpha_t) x + (1 - alpha_s) m) / (1 - alpha_t)
    reverse       p(z_s | z_t)    = q(z_s | z_t, x = x_theta(z_t))
"""

from __future__ import annotations

import math

import torch

from partita.schedules import Schedule


def prior_nats(schedule: Schedule, tokens: int, vocab_size: int) -> float:
    """KL(q(z_1 | x) || p(z_1)) of a sequence: 0 for every schedule that ends at alpha = 0.

    A truncated schedule leaves a share alpha(1) of the tokens visible; the matching prior draws
    them uniformly, which costs ln V each.
    """
    left = float(schedule.alpha(torch.ones((), dtype=torch.float64)))
    return tokens * left * math.log(vocab_size)


def reconstruction_nats(schedule: Schedule, tokens: int, vocab_size: int) -> float:
    """-E log p(x | z_0) of a sequence: 0 for every schedule that starts at alpha = 1.

    A truncated schedule still hides a share 1 - alpha(0) of the tokens, guessed uniformly.
    """
    hidden = float(schedule.one_minus_alpha(torch.zeros((), dtype=torch.float64)))
    return tokens * hidden * math.log(vocab_size)
