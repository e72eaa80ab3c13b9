"""Divergences between a student's and a teacher's predictions, one number per token.

Both are log-probabilities over the same columns. A column to which both give probability 0, such
as the mask's, is ignored.
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
    """KL(p || q). Entries with p = 0 are masked before the product, whose gradient would be NaN."""
    p, q = _possible(p, q)
    gone = torch.isneginf(p)
    return (p.exp() * (p.masked_fill(gone, 0) - q.masked_fill(gone, 0))).sum(-1)


@DIVERGENCES.register("total-variation")
def total_variation(
    student: Float[Tensor, "N V"], teacher: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    """Half the sum of the absolute differences of probabilities."""
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


def _impossible(student: Tensor, teacher: Tensor) -> Bool[Tensor, "N V"]:
    return torch.isneginf(student) & torch.isneginf(teacher)


def _possible(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Both with 0 in columns that both give probability 0, since -inf minus -inf is NaN."""
    neither = _impossible(student, teacher)
    return student.masked_fill(neither, 0), teacher.masked_fill(neither, 0)


def _columns(student: Tensor, teacher: Tensor) -> Float[Tensor, "N"]:
    """The number of columns to which at least one of the two gives a positive probability."""
    return (~_impossible(student, teacher)).sum(-1).to(student.dtype)
