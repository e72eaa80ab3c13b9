"""Rules of the sampler `insertion`: the probabilities of inserting and of revealing a mask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.categorical import sample_categorical
from partita.networks.flexible import Answer
from partita.processes.insertion import Interpolant
from partita.registry import Registry


class Rule(ABC):
    """The probabilities of inserting and revealing in one step, from time t to s."""

    @abstractmethod
    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Float64[Tensor, ""]:
        """The probability that a mask is revealed."""

    @abstractmethod
    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Float64[Tensor, "G K"]
    ) -> Int64[Tensor, "G"]:
        """How many masks each gap receives, from K uniform numbers per gap (or some of them)."""


RULES: Registry[type[Rule]] = Registry("rule")


@RULES.register("schedule")
class ScheduleRule(Rule):
    """The exact probabilities of the schedules."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Tensor:
        return process.unmasking.reveal_probability(s, t)

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Tensor
    ) -> Tensor:
        p = process.insertion.reveal_probability(s, t)
        if answer.counts is None:
            return (u[:, 0] < insertion_chance(p, answer.gaps)).long()
        missing = sample_categorical(answer.counts.log_softmax(-1), u[:, 0])
        return binomial(missing, p, u[:, 1])


@RULES.register("euler")
class EulerRule(Rule):
    """Rates times the length of a step, at most 1."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Tensor:
        return (process.unmasking.weight(t) * (t - s)).clamp(max=1)

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Tensor
    ) -> Tensor:
        return (u[:, 0] < process.insertion.weight(t) * (t - s) * answer.gaps.double()).long()


@RULES.register("tau-leaping")
class TauRule(Rule):
    """Poisson events at the rates of time t."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Tensor:
        return -torch.expm1(-process.unmasking.weight(t) * (t - s))

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Tensor
    ) -> Tensor:
        return poisson(process.insertion.weight(t) * (t - s) * answer.gaps.double(), u[:, 0])


def insertion_chance(p: Float64[Tensor, ""], expected: Float[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """1 - (1 - p)^g: the probability that at least one of g missing tokens is inserted."""
    return -torch.expm1(torch.log1p(-p) * expected.double())


def poisson(mean: Float64[Tensor, "G"], u: Float64[Tensor, "G"]) -> Int64[Tensor, "G"]:
    """Draw Poisson numbers by inversion."""
    largest = float(mean.max()) if mean.numel() else 0.0

    def log_term(k: int) -> Tensor:
        power: Tensor = torch.special.xlogy(k, mean)
        return power - mean - math.lgamma(k + 1)

    return _inverted(log_term, int(largest + 12 * math.sqrt(largest) + 24), u)


def binomial(
    size: Int64[Tensor, "G"], p: Float64[Tensor, ""], u: Float64[Tensor, "G"]
) -> Int64[Tensor, "G"]:
    """Draw binomial numbers by inversion."""
    n = size.double()

    def log_term(k: int) -> Tensor:
        rest = (n - k).clamp(min=0)
        ways = torch.lgamma(n + 1) - math.lgamma(k + 1) - torch.lgamma(rest + 1)
        chance = torch.special.xlogy(k, p) + torch.special.xlog1py(rest, -p)
        return torch.where(k <= n, ways + chance, -torch.inf)

    return _inverted(log_term, int(size.max()) if size.numel() else 0, u).minimum(size)


def _inverted(log_term: Callable[[int], Tensor], most: int, u: Tensor) -> Int64[Tensor, "G"]:
    """Invert a cumulative distribution: the number of its values that are at most u.

    Each term is computed by itself and not from the one before: for a large mean the first are 0.
    """
    count, total = torch.zeros_like(u, dtype=torch.int64), torch.zeros_like(u)
    for k in range(most):
        total = total + torch.exp(log_term(k))
        above = u >= total
        if not bool(above.any()):
            break
        count += above.long()
    return count
