"""Corruptions: which tokens training and evaluation hide, and how much each counts in the loss.

Every objective of the masked family is E[sum over hidden tokens of w * -log p(x)]. A corruption
draws which tokens are hidden and sets w. The first three estimate one bound in different ways:

    continuous   t uniform, hide with 1 - alpha_t, w = -alpha'_t / (1 - alpha_t)    (MDLM eq. 10)
    discrete     t on T bins, w = T (alpha_s - alpha_t) / (1 - alpha_t)             (MDLM eq. 8)
    subset       k uniform on 1..L, k random positions, w = L / k
    clipped      as subset with w at most some number: lower variance, no bound
    unweighted   as continuous with w = 1: even lower variance, no bound
    rate         any hiding rate and any weight: general masked generative modeling

The subset form follows from the continuous one by integrating t out: exactly k of L tokens are
hidden with density C(L, k) (1 - alpha)^k alpha^(L-k), and the integral of that times
-alpha'/(1 - alpha) over t is C(L, k) B(k, L - k + 1) = 1/k for every schedule. It needs a network
that is not conditioned on the time, and its weights are bounded by L.

A partition (PGM) also predicts the visible tokens from the hidden ones. In that complementary task
tokens are hidden with probability alpha_t, and each has the weight that makes it a bound too:

    continuous   -alpha'_t / alpha_t
    discrete     t_i on the T + 1 points of the grid, T (alpha_i - alpha_{i+1}) / alpha_i for the
                 visible tokens, T (alpha_{i-1} - alpha_i) / (1 - alpha_i) for the hidden ones
    subset       k on 0..L, L / (L-k) for the visible tokens, L / k for the hidden ones
    clipped      as subset with weights of at most some number
    unweighted   1
    rate         the weight at 1 - t, as in the paper: no bound in general

The two ends, where one group is empty, have half the probability of the other points and twice the
weight. Under "subset" the weights of a sequence then always sum to 2 L, so that the loss has no
variance if all tokens cost the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from partita.contracts.capabilities import Recordable
from partita.contracts.shapes import Marks, RowTimes
from partita.errors import InputError, require_int
from partita.moved import offer_old_names
from partita.processes.draws import (
    doubled_ends,
    even_times,
    hide_independently,
    positive_time,
    random_ranks,
)
from partita.randomness import Noise
from partita.registry import Registry, check_options
from partita.schedules import Schedule, discretize

offer_old_names(__name__)


CORRUPTIONS: Registry[Callable[..., Corruption]] = Registry("corruption")


@dataclass(frozen=True)
class Corrupted:
    """Hidden tokens, the weight of each token, and the time of each row if there is one."""

    masked: Marks
    weights: Float[Tensor, "B L"]
    times: RowTimes | None


@dataclass(frozen=True)
class Partition:
    """Two groups of tokens (true for group 1), and the weight of each token in its group."""

    groups: Marks
    weights: Float[Tensor, "B L"]


class Corruption(Recordable, ABC):
    """How tokens are hidden, or partitioned into two groups."""

    timed: ClassVar[bool]
    """Whether a draw has a time."""
    bound: ClassVar[bool]
    """Whether its weights make the loss a bound on the likelihood."""
    parts: ClassVar[bool] = False
    """Whether it defines `partition`."""

    @abstractmethod
    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        """Hide some of the real tokens."""

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        """Partition the real tokens into two groups, each predicted from the other."""
        raise NotImplementedError  # `parts` says whether a subclass defines it


def weighed(
    groups: Marks, hidden: Float[Tensor, "B"], visible: Float[Tensor, "B"], is_token: Marks
) -> Partition:
    """A partition with one weight for each row's group 1 (`hidden`) and one for its group 0.

    The weight of an empty group may be infinite, as no token has it.
    """
    weights = torch.where(groups, hidden[:, None], visible[:, None])
    return Partition(groups, torch.where(is_token, weights, 0))


@CORRUPTIONS.register("continuous")
@dataclass(frozen=True)
class Continuous(Corruption):
    """The continuous-time bound."""

    schedule: Schedule
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    parts: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        t = positive_time(even_times(noise, step, batch))
        masked = hide_independently(self.schedule.one_minus_alpha(t), is_token, noise, step)
        return Corrupted(masked, self.schedule.weight(t)[:, None].expand(is_token.shape), t)

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        t = positive_time(even_times(noise, step, batch))
        groups = hide_independently(self.schedule.one_minus_alpha(t), is_token, noise, step)
        return weighed(groups, *self.weights(t), is_token)

    def weights(self, t: RowTimes) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """-alpha' / (1 - alpha) of hidden tokens, -alpha' / alpha of visible ones."""
        return self.schedule.weight(t), self.schedule.complement_weight(t)


@CORRUPTIONS.register("discrete")
@dataclass(frozen=True)
class Discrete(Corruption):
    """The bound of a chain of T steps; its first step is the reconstruction term."""

    schedule: Schedule
    steps: int = 1000
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    parts: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_int(self.steps, "steps")

    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        t = discretize(even_times(noise, step, batch), self.steps)
        masked = hide_independently(self.schedule.one_minus_alpha(t), is_token, noise, step)
        return Corrupted(masked, self.weights(t)[:, None].expand(is_token.shape), t)

    def weights(self, t: RowTimes) -> Float[Tensor, "B"]:
        """T (alpha_s - alpha_t) / (1 - alpha_t) with s = t - 1/T, for t on the grid."""
        bin_number = torch.round(t.double() * self.steps)  # float32 times would cancel in t - s
        s, end = (bin_number - 1) / self.steps, bin_number / self.steps
        return (self.steps * self.schedule.reveal_probability(s, end)).to(t.dtype)

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        index = torch.floor(even_times(noise, step, batch) * self.steps + 0.5)
        hidden = self.schedule.one_minus_alpha(index / self.steps)
        groups = hide_independently(hidden, is_token, noise, step)
        return weighed(groups, *self.partition_weights(index), is_token)

    def partition_weights(
        self, index: Float[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """Weights of hidden and of visible tokens at t = index / T, doubled at the two ends."""
        t = index.double() / self.steps
        before, after = (index - 1).clamp(min=0) / self.steps, (index + 1) / self.steps
        alpha, hidden = self.schedule.alpha(t), self.schedule.one_minus_alpha(t)
        of_hidden = self.schedule.decrease(before, t) / hidden
        of_visible = self.schedule.decrease(t, after.clamp(max=1)) / alpha
        count = self.steps * doubled_ends(index, self.steps)
        return (
            torch.where(index > 0, count * of_hidden, 0),
            torch.where(index < self.steps, count * of_visible, 0),
        )


@CORRUPTIONS.register("subset")
@dataclass(frozen=True)
class Subset(Corruption):
    """The same bound with the time integrated out, for networks not conditioned on the time."""

    schedule: Schedule | None = None
    timed: ClassVar[bool] = False
    bound: ClassVar[bool] = True
    parts: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        tokens = is_token.sum(-1)
        share = even_times(noise, step, batch)
        count = torch.minimum(torch.floor(share * tokens) + 1, tokens)
        weight = tokens / count.clamp(min=1)  # a row of only padding hides nothing
        masked = (random_ranks(is_token, noise, step) < count[:, None]) & is_token
        return Corrupted(masked, weight[:, None].expand(is_token.shape), None)

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        tokens = is_token.sum(-1)
        share = even_times(noise, step, batch)
        count = torch.floor(share * tokens + 0.5)
        groups = (random_ranks(is_token, noise, step) < count[:, None]) & is_token
        total = tokens * doubled_ends(count, tokens)
        return weighed(groups, total / count, total / (tokens - count), is_token)


@CORRUPTIONS.register("clipped")
@dataclass(frozen=True)
class Clipped(Corruption):
    """The subset corruption with weights of at most `most`.

    Rows with few hidden tokens have the largest weights, and cause most of the variance.
    """

    schedule: Schedule | None = None
    most: int = 4
    timed: ClassVar[bool] = False
    bound: ClassVar[bool] = False
    parts: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_int(self.most, "most")

    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        drawn = Subset().draw(is_token, noise, step, batch)
        return replace(drawn, weights=drawn.weights.clamp(max=self.most))

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        drawn = Subset().partition(is_token, noise, step, batch)
        return replace(drawn, weights=drawn.weights.clamp(max=self.most))


@CORRUPTIONS.register("rate")
@dataclass(frozen=True)
class Rate(Corruption):
    """General masked generative modeling: any hiding rate and any weight, as functions of t.

    `Rate(rate=lambda t: torch.full_like(t, 0.15))` is BERT's corruption.
    """

    schedule: Schedule | None = None
    rate: Callable[[Tensor], Tensor] | None = None
    weight: Callable[[Tensor], Tensor] = torch.ones_like
    timed: ClassVar[bool] = True
    bound: ClassVar[bool] = False
    parts: ClassVar[bool] = True
    recordable: ClassVar[bool] = True

    def draw(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Corrupted:
        t = positive_time(even_times(noise, step, batch))
        masked = hide_independently(self._rate(t), is_token, noise, step)
        return Corrupted(masked, self.weight(t)[:, None].expand(is_token.shape), t)

    def partition(self, is_token: Marks, noise: Noise, step: int, batch: int) -> Partition:
        t = positive_time(even_times(noise, step, batch))
        groups = hide_independently(self._rate(t), is_token, noise, step)
        return weighed(groups, self.weight(t), self.weight(1 - t), is_token)

    def _rate(self, t: Tensor) -> Tensor:
        rate = self.rate or (self.schedule.one_minus_alpha if self.schedule else None)
        if rate is None:
            raise InputError("corruption", "'rate' needs a schedule or a rate function")
        return rate(t)


@CORRUPTIONS.register("unweighted")
def unweighted(schedule: Schedule) -> Rate:
    """The schedule's hiding rate with weight 1."""
    return Rate(schedule)


def make_corruption(corruption: str | Corruption, schedule: Schedule, **options: Any) -> Corruption:
    """A corruption by name, over a schedule."""
    if not isinstance(corruption, str):
        return corruption
    check_options("corruption", corruption, CORRUPTIONS[corruption], options)
    return CORRUPTIONS[corruption](schedule, **options)
