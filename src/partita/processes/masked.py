"""The absorbing (masking) process of MDLM, MD4 and related methods.

A token x is visible at time t with probability alpha_t, and otherwise it is the mask m.
Distributions over states are vectors whose last axis has all tokens and the mask.

    marginal      q(z_t | x)      = alpha_t x + (1 - alpha_t) m
    transition    q(z_t | z_s)    = (alpha_t / alpha_s) z_s + (1 - alpha_t / alpha_s) m
    posterior     q(z_s | z_t, x) = z_t if visible, else
                                    ((alpha_s - alpha_t) x + (1 - alpha_s) m) / (1 - alpha_t)
    reverse       p(z_s | z_t)    = q(z_s | z_t, x = x_theta(z_t))
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.shapes import RowTimes, Tokens
from partita.schedules import Schedule


def states(tokens: Int64[Tensor, "*t"], size: int) -> Float[Tensor, "*t size"]:
    """Tokens as one-hot vectors in float64."""
    return F.one_hot(tokens, size).to(torch.float64)


def marginal(
    x: Tokens, t: RowTimes, schedule: Schedule, mask_id: int, size: int
) -> Float[Tensor, "B L size"]:
    """q(z_t | x) (MDLM eq. 1)."""
    alpha, hidden = schedule.alpha(t)[:, None, None], schedule.one_minus_alpha(t)[:, None, None]
    return alpha * states(x, size) + hidden * states(torch.full_like(x, mask_id), size)


def transition(
    z_s: Tokens, s: RowTimes, t: RowTimes, schedule: Schedule, mask_id: int, size: int
) -> Float[Tensor, "B L size"]:
    """q(z_t | z_s) for s < t."""
    lost = (schedule.decrease(s, t) / schedule.alpha(s))[:, None, None]
    mask = states(torch.full_like(z_s, mask_id), size)
    return (1 - lost) * states(z_s, size) + lost * mask


def reverse(
    mean: Float[Tensor, "B L C"],
    z_t: Tokens,
    s: RowTimes,
    t: RowTimes,
    schedule: Schedule,
    mask_id: int,
) -> Float[Tensor, "B L S"]:
    """p(z_s | z_t) with x_theta = mean (MDLM eq. 7, MD4 eq. 4).

    The mean may have mass on the mask itself (D3PM's parameterization); with SUBS and MD4 it has
    none, and the formula is the one at the top of this file.
    """
    size = max(mean.shape[-1], mask_id + 1)
    mean = F.pad(mean, (0, size - mean.shape[-1]))
    alpha_s, alpha_t = schedule.alpha(s)[:, None], schedule.alpha(t)[:, None]
    hidden_s, hidden_t = schedule.one_minus_alpha(s)[:, None], schedule.one_minus_alpha(t)[:, None]
    at_mask = mean[..., mask_id]
    moved = schedule.decrease(s, t)[:, None, None] * mean
    moved[..., mask_id] = alpha_s * at_mask + hidden_s
    moved = moved / (alpha_t * at_mask + hidden_t)[..., None]
    return torch.where((z_t == mask_id)[..., None], moved, states(z_t, size).to(moved.dtype))


def posterior(
    x: Tokens, z_t: Tokens, s: RowTimes, t: RowTimes, schedule: Schedule, mask_id: int, size: int
) -> Float[Tensor, "B L size"]:
    """q(z_s | z_t, x): the reverse step given the true x."""
    return reverse(states(x, size), z_t, s, t, schedule, mask_id)


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
