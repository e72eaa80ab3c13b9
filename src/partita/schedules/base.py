"""The base class of schedules: alpha(t) is the probability that a token is visible at time t.

Each schedule has two formulas: one for 1 - alpha that is accurate if 1 - alpha is small (t near 0),
and one for alpha that is accurate if alpha is small (t near 1). The base class uses the better one
for each t, so both numbers have full relative precision in float32 on all of [0, 1], without an
epsilon.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from partita.registry import Registry

Times = Float[Tensor, "*shape"]

SCHEDULES: Registry[Callable[..., Schedule]] = Registry("schedule")


class Schedule(ABC):
    """alpha(t), 1 - alpha(t), alpha'(t), the loss weight and both inverses."""

    # Defined by each schedule --------------------------------------------------------------------

    @abstractmethod
    def _head(self, t: Times) -> Times:
        """1 - alpha(t), accurate if it is small; exactly 0 at t = 0."""

    @abstractmethod
    def _tail(self, t: Times) -> Times:
        """alpha(t), accurate if it is small; exactly 0 at t = 1."""

    @abstractmethod
    def _inverse_head(self, hidden: Times) -> Times:
        """The time at which 1 - alpha equals `hidden`, accurate if `hidden` is small."""

    @abstractmethod
    def _inverse_tail(self, alpha: Times) -> Times:
        """The time at which alpha equals `alpha`, accurate if `alpha` is small."""

    @abstractmethod
    def derivative(self, t: Times) -> Times:
        """alpha'(t), which is never positive."""

    # Common to all schedules ---------------------------------------------------------------------

    def weight(self, t: Times) -> Times:
        """-alpha'(t) / (1 - alpha(t)), the weight of the continuous-time bound (MDLM eq. 10)."""
        return -self.derivative(t) / self.one_minus_alpha(t)

    def alpha(self, t: Times) -> Times:
        """The probability that a token is visible at time t."""
        head = self._head(t)
        return torch.where(head < 0.5, 1 - head, self._tail(t))

    def one_minus_alpha(self, t: Times) -> Times:
        """The probability that a token is masked at time t, without cancellation."""
        head = self._head(t)
        return torch.where(head < 0.5, head, 1 - self._tail(t))

    def inverse(self, alpha: Times) -> Times:
        """The time t with alpha(t) = alpha."""
        time = torch.where(alpha > 0.5, self._inverse_head(1 - alpha), self._inverse_tail(alpha))
        return time.clamp(0, 1)

    def inverse_one_minus(self, hidden: Times) -> Times:
        """The time t with 1 - alpha(t) = hidden."""
        time = torch.where(hidden < 0.5, self._inverse_head(hidden), self._inverse_tail(1 - hidden))
        return time.clamp(0, 1)

    def complement_weight(self, t: Times) -> Times:
        """-alpha'(t) / alpha(t), the bound's weight if visible tokens are predicted from hidden."""
        return -self.derivative(t) / self.alpha(t)

    def decrease(self, s: Times, t: Times) -> Times:
        """alpha(s) - alpha(t) for s <= t, computed from the smaller of alpha and 1 - alpha."""
        hidden_t, alpha_s = self.one_minus_alpha(t), self.alpha(s)
        return torch.where(
            alpha_s < 0.5, alpha_s - self.alpha(t), hidden_t - self.one_minus_alpha(s)
        )

    def reveal_probability(self, s: Times, t: Times) -> Times:
        """(alpha_s - alpha_t) / (1 - alpha_t): a masked token is revealed between t and s < t.

        It is 1 if 1 - alpha_t underflows, so that no mask is left.
        """
        hidden = self.one_minus_alpha(t)
        return torch.where(hidden > 0, self.decrease(s, t) / hidden, 1.0)
