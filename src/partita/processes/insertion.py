"""The joint interpolant of FlexMDM: tokens become masks, and masks are deleted.

It has two schedules, `insertion` (a) and `unmasking` (b), which fall from 1 at t = 0 (data) to 0 at
t = 1 (the empty text). (The paper's time is reversed: its alpha_s is our a(1 - s), its beta_s our
b(1 - s).) Every token draws a time D at which it is deleted, and an earlier time M at which it
becomes a mask:

    D with P(D > t) = a(t),        M with P(M > t | D) = (b(t) - b(D)) / (1 - b(D)) for t <= D

At time t a token is clean (t <= M), a mask (M < t <= D) or deleted (D < t). The remaining tokens
close up, so the state does not show where tokens are missing. In the reverse process, from t to
s < t, a mask becomes clean with probability (b(s) - b(t)) / (1 - b(t)), and a missing token is
inserted as a mask, in the gap between its remaining neighbors, with probability
(a(s) - a(t)) / (1 - a(t)) (`Schedule.reveal_probability`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.packed import PackedTokens
from partita.contracts.shapes import Marks, RowTimes, Tokens
from partita.schedules import Schedule


@dataclass(frozen=True)
class State:
    """The noisy state of a batch of texts at given times.

    A text of k tokens has k + 1 gaps: gap i is before token i, the last one at the end. Gaps are
    packed as `text.with_ends` packs tokens, so that gap i has the index of token i.
    """

    text: PackedTokens
    hidden: Bool[Tensor, "N"]
    """True where its token is a mask."""
    gaps: Int64[Tensor, "G"]
    """Number of missing tokens in each gap."""

    @property
    def source(self) -> Int64[Tensor, "N"]:
        """The column of the batch that each token comes from."""
        return self.text.indices.positions


@dataclass(frozen=True)
class Interpolant:
    """The schedules of insertion and unmasking."""

    insertion: Schedule
    unmasking: Schedule

    def times(
        self, u_gone: Float[Tensor, "B L"], u_mask: Float[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """D and M of every token, by inverting the schedules at uniform numbers."""
        gone = self.insertion.inverse(u_gone)
        floor = self.unmasking.alpha(gone)
        return gone, self.unmasking.inverse(u_mask * (1 - floor) + floor)

    @staticmethod
    def state(
        tokens: Tokens,
        real: Marks,
        t: RowTimes,
        gone: Float[Tensor, "B L"],
        masked: Float[Tensor, "B L"],
        mask_id: int,
        kept: Marks | None = None,
    ) -> State:
        """The texts at time t, given D (`gone`) and M of each token; `kept` tokens never change."""
        present, clean = t[:, None] <= gone, t[:, None] <= masked
        if kept is not None:
            present, clean = present | kept, clean | kept
        present, hidden = present & real, present & ~clean & real
        text = PackedTokens.of(torch.where(hidden, mask_id, tokens), present)
        positions = (real.cumsum(-1) - 1)[present]  # among the real tokens of the text
        gaps = _missing(text, positions, real.sum(-1))
        return State(text, hidden[present], gaps)


def _missing(text: PackedTokens, positions: Tensor, whole: Tensor) -> Int64[Tensor, "G"]:
    """Number of missing tokens before each present token, and after the last one."""
    ended, at, ends = text.with_ends(0)
    position = torch.zeros_like(ended.tokens).index_copy(0, at, positions)
    position = position.index_copy(0, ends, whole)
    before = F.pad(position, (1, 0))[:-1]
    before[F.pad(ends + 1, (1, 0))[:-1]] = -1  # at the start of each text
    return position - before - 1


def bregman(count: Float[Tensor, "*n"], expected: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """phi(x, y) = y - x + x log(x / y) >= 0; for random x, its mean is least at y = E[x]."""
    own: Tensor = torch.special.xlogy(count, count)  # the quotient x / y has no gradient at 0
    return expected - count + own - count * expected.log()


def order_nats(longest: int) -> Float[Tensor, "lengths"]:
    """The excess c(n) of the insertion loss over -log p, for texts of n = 0..longest tokens.

    phi compares the rate x of a gap with the model's, but ignores which of its x tokens is
    inserted: log x nats at each insertion. All orders of n tokens are equally likely, and a token
    splits its gap evenly at random: the expected sum is c(n) = log n + 2/n sum_(j<n) c(j), which is
    (n + 1) sum_(k<=n) (k log k - (k-1) log(k-1)) / (k (k+1)). (For n <= 2 that is log n!, for
    longer texts less.)
    """
    k = torch.arange(1, longest + 1, dtype=torch.float64, device="cpu")
    steps = torch.special.xlogy(k, k) - torch.special.xlogy(k - 1, k - 1)
    return F.pad((k + 1) * (steps / (k * (k + 1))).cumsum(0), (1, 0))


def free_runs(real: Marks, kept: Marks | None = None) -> Int64[Tensor, "B L+1"]:
    """Number of tokens of each text to delete before, between and after the kept ones.

    A gap never extends across a kept token, so each run has its own order.
    """
    held = torch.zeros_like(real) if kept is None else kept & real
    runs = torch.zeros(len(real), real.shape[1] + 1, dtype=torch.int64, device=real.device)
    return runs.scatter_add(-1, held.cumsum(-1), (real & ~held).long())
