"""Chains over whole sequences as matrices, and scores of a mean, for exact values on tiny models.

They compare the losses of Lou et al. (2023) and of Campbell et al. (2022) by enumeration.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from partita.processes.ctmc import Graph, Numbers, States, Vectors, xlogy


def mean_from_score(
    graph: Graph, score: Vectors, x: States, sigma: Numbers
) -> Float[Tensor, "*n V"]:
    """E[x_0 | z_t = x], by a step that removes all noise."""
    return graph.analytic(score, x, sigma)[..., : graph.tokens]


def score_from_mean(
    graph: Graph, mean: Float[Tensor, "*n V"], x: States, sigma: Numbers
) -> Vectors:
    """s(x)_y = sum over x_0 of E[x_0 | x] q(y | x_0) / q(x | x_0) (for masks: MD4, prop. 1)."""
    mean = F.pad(mean, (0, graph.states - mean.shape[-1]))
    return graph.flow(torch.where(mean > 0, mean / graph.row(x, sigma), 0.0), sigma)


def over_sequences(q: Float[Tensor, "S S"], length: int) -> Float[Tensor, "N N"]:
    """The chain over all S^length sequences of independent positions, in lexicographic order."""
    size = q.shape[0]
    total = q.new_zeros(size**length, size**length)
    for position in range(length):
        before, after = (
            torch.eye(size**n, dtype=q.dtype) for n in (position, length - 1 - position)
        )
        total += torch.kron(torch.kron(before, q), after)
    return total


def true_reverse(forward: Float[Tensor, "N N"], law: Float[Tensor, "N"]) -> Float[Tensor, "N N"]:
    """Rates of the reversed chain under the distribution `law`: Q(x, y) law(y) / law(x)."""
    ratio = torch.where(law > 0, law[:, None] / law, 0.0)
    rates = _off_diagonal(forward).T * ratio
    return rates - torch.diag(rates.sum(0))


def rate_divergence(
    truth: Float[Tensor, "N N"], model: Float[Tensor, "N N"], law: Float[Tensor, "N"]
) -> Float[Tensor, ""]:
    """The rate at which two reverse chains diverge: E over x of sum r^ - r log r^ + K(r).

    With the rates of scores it is the denoising score entropy; its integral over time is the KL
    divergence of the paths.
    """
    r, ours = _off_diagonal(truth), _off_diagonal(model)
    terms = ours - r + xlogy(r, r) - xlogy(r, ours)
    return (terms.sum(0) * law).sum()


def campbell_rate(
    forward: Float[Tensor, "N N"], model: Float[Tensor, "N N"], law: Float[Tensor, "N"]
) -> Float[Tensor, ""]:
    """The integrand of Campbell et al.'s bound, without its constant.

    E over x of (rates out of x under the model) - sum over y of Q(y, x) log(model's rate back from
    y to x). It evaluates the model at every neighbor y of x; summation by parts turns it into
    `rate_divergence`, which evaluates it only at x.
    """
    away, ours = _off_diagonal(forward), _off_diagonal(model)
    back = xlogy(away, ours.T)
    return ((ours - back).sum(0) * law).sum()


def campbell_constant(forward: Float[Tensor, "N N"], law: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """`rate_divergence` minus `campbell_rate`, which does not depend on the model."""
    r = _off_diagonal(true_reverse(forward, law))
    return ((xlogy(r, r) - r).sum(0) * law).sum()


def _off_diagonal(q: Tensor) -> Tensor:
    return q - torch.diag(torch.diagonal(q))
