"""How far a student's prediction is from a teacher's: one number for each token.

Both are log-probabilities over the same columns. A column that neither can take, such as the
mask's, has no part in any of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from partita.registry import Registry

Divergence = Callable[[Tensor, Tensor], Tensor]
DIVERGENCES: Registry[Divergence] = Registry("distillation.divergence")


@DIVERGENCES.register("reverse-kl")
def reverse_kl(student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """KL(student || teacher). Over several targets it is least at their geometric mean."""
    return _kl(student, teacher)


@DIVERGENCES.register("forward-kl")
def forward_kl(student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """KL(teacher || student). Over several targets it is least at their mean."""
    return _kl(teacher, student)


def _kl(p: Tensor, q: Tensor) -> Float[Tensor, "N"]:
    """KL(p || q). What p cannot be is left out before the product: its gradient is no number."""
    p, q = _possible(p, q)
    gone = _impossible(p)
    return (p.exp() * (p.masked_fill(gone, 0) - q.masked_fill(gone, 0))).sum(-1)


@DIVERGENCES.register("total-variation")
def total_variation(
    student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    """Half the sum of what the probabilities differ by."""
    return (student.exp() - teacher.exp()).abs().sum(-1) / 2


@DIVERGENCES.register("mse")
def mean_squared_error(
    student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    """The mean over the vocabulary of the squared difference of probabilities."""
    return (student.exp() - teacher.exp()).square().sum(-1) / _columns(student, teacher)


@DIVERGENCES.register("log-mse")
def mean_squared_log_error(
    student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    """The mean over the vocabulary of the squared difference of log-probabilities."""
    count = _columns(student, teacher)
    student, teacher = _possible(student, teacher)
    return (student - teacher).square().sum(-1) / count


def _impossible(log_probs: Tensor) -> Bool[Tensor, "N V"]:
    return torch.isneginf(log_probs)


def _possible(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Both with zeros where neither has mass, since -inf less -inf is no number."""
    neither = _impossible(student) & _impossible(teacher)
    return student.masked_fill(neither, 0), teacher.masked_fill(neither, 0)


def _columns(student: Tensor, teacher: Tensor) -> Float[Tensor, "N"]:
    """How many words of the vocabulary one of the two can take."""
    return (~(_impossible(student) & _impossible(teacher))).sum(-1).to(student.dtype)
