"""The joint interpolant of FlexMDM: tokens become masks, and masks disappear.

Two schedules, both falling from 1 at t = 0 (data) to 0 at t = 1 (the empty text), tell how much is
there: `insertion` (a) and `unmasking` (b). (The paper's time runs the other way: its alpha_s is our
a(1 - s), its beta_s our b(1 - s).) Every token draws a time at which it disappears, and before that
one at which it becomes a mask:

    D with P(D > t) = a(t),        M with P(M > t | D) = (b(t) - b(D)) / (1 - b(D)) for t <= D

At time t a token is clean (t <= M), a mask (M < t <= D) or gone (D < t). What is left closes up, so
that the state does not tell where tokens are missing. Backwards, a mask of time t is clean at s < t
with probability (b(s) - b(t)) / (1 - b(t)), and a token that is missing is there again, as a mask,
with probability (a(s) - a(t)) / (1 - a(t)) (`Schedule.reveal_probability`), in the gap between its
neighbours that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.packed import PackedTokens
from partita.schedules import Schedule


@dataclass(frozen=True)
class State:
    """What is left of a batch of texts at some times.

    A text of k tokens has k + 1 gaps: gap i is before token i, the last one at the end. Gaps are
    packed as `text.with_ends` packs tokens, so that gap i is read where token i stands.
    """

    text: PackedTokens
    hidden: Bool[Tensor, "N"]
    """Which of its tokens are masks."""
    gaps: Int64[Tensor, "G"]
    """How many tokens are missing in each gap."""

    @property
    def source(self) -> Int64[Tensor, "N"]:
        """The column of the batch that each token comes from."""
        return self.text.indices.positions


@dataclass(frozen=True)
class Interpolant:
    """The two schedules."""

    insertion: Schedule
    unmasking: Schedule

    def times(
        self, u_gone: Float[Tensor, "B L"], u_mask: Float[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """D and M of every token, by inversion of uniform numbers."""
        gone = self.insertion.inverse(u_gone)
        floor = self.unmasking.alpha(gone)
        return gone, self.unmasking.inverse(u_mask * (1 - floor) + floor)

    @staticmethod
    def state(
        tokens: Int64[Tensor, "B L"],
        real: Bool[Tensor, "B L"],
        t: Float[Tensor, "B"],
        gone: Float[Tensor, "B L"],
        masked: Float[Tensor, "B L"],
        mask_id: int,
        kept: Bool[Tensor, "B L"] | None = None,
    ) -> State:
        """The texts at time t, given when each token goes; `kept` ones (of a prompt) never do."""
        there, clean = t[:, None] <= gone, t[:, None] <= masked
        if kept is not None:
            there, clean = there | kept, clean | kept
        there, hidden = there & real, there & ~clean & real
        text = PackedTokens.of(torch.where(hidden, mask_id, tokens), there)
        places = (real.cumsum(-1) - 1)[there]  # in the text, whatever stands between its tokens
        gaps = _missing(text, places, real.sum(-1))
        return State(text, hidden[there], gaps)


def _missing(text: PackedTokens, places: Tensor, whole: Tensor) -> Int64[Tensor, "G"]:
    """Tokens between neighbours that are there, or before the first, or after the last."""
    ended, at, ends = text.with_ends(0)
    position = torch.zeros_like(ended.tokens).index_copy(0, at, places).index_copy(0, ends, whole)
    before = F.pad(position, (1, 0))[:-1]
    before[F.pad(ends + 1, (1, 0))[:-1]] = -1  # where a text begins
    return position - before - 1


def bregman(count: Float[Tensor, "*n"], expected: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """phi(x, y) = y - x + x log(x / y): at least 0, and least in the mean where y is that of x."""
    own: Tensor = torch.special.xlogy(count, count)  # a quotient has no gradient at 0
    return expected - count + own - count * expected.log()


def order_nats(longest: int) -> Float[Tensor, "lengths"]:
    """What the insertion loss has above a likelihood, for texts of 0..longest tokens.

    phi compares the rate x of a gap with the model's, and does not say which of its x tokens comes.
    That is log x nats at each insertion. All orders of n tokens are equally likely, and a token
    splits its gap evenly at random: the expected sum is c(n) = log n + 2/n sum_(j<n) c(j), which is
    (n + 1) sum_(k<=n) (k log k - (k-1) log(k-1)) / (k (k+1)). (For n <= 2 that is log n!, for
    longer texts less.)
    """
    k = torch.arange(1, longest + 1, dtype=torch.float64, device="cpu")
    steps = torch.special.xlogy(k, k) - torch.special.xlogy(k - 1, k - 1)
    return F.pad((k + 1) * (steps / (k * (k + 1))).cumsum(0), (1, 0))


def free_runs(
    real: Bool[Tensor, "B L"], kept: Bool[Tensor, "B L"] | None = None
) -> Int64[Tensor, "B L+1"]:
    """How many tokens of each text disappear before, between and after the kept ones.

    A gap never reaches across a kept token, so that each run has an order of its own.
    """
    held = torch.zeros_like(real) if kept is None else kept & real
    runs = torch.zeros(len(real), real.shape[1] + 1, dtype=torch.int64, device=real.device)
    return runs.scatter_add(-1, held.cumsum(-1), (real & ~held).long())
