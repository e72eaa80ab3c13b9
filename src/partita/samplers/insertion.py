"""The reverse process of flexible length (FlexMDM): masks are inserted, then revealed.

A step goes from time t to s < t with the model's predictions at t. Each mask is revealed with some
probability, and gap i, where the model expects g_i missing tokens, receives masks. Both use the
same state, independently for every mask and gap. The rule sets the probabilities:

    rule          a mask is revealed                 masks that a gap receives
    schedule      (b_s - b_t) / (1 - b_t)            one, with probability 1 - (1 - p)^g, where
                                                     p = (a_s - a_t) / (1 - a_t)
    euler         w_b (t - s)                        one, with probability w_a g (t - s)
    tau-leaping   1 - exp(-w_b (t - s))              Poisson with the mean w_a g (t - s)

a and b are the schedules of insertion and unmasking, w = -alpha'/(1 - alpha). If the model predicts
a distribution of the counts, `schedule` can insert several masks at a time: it draws the number of
missing tokens and inserts each with probability p. The last step inserts nothing and reveals every
mask. All rules converge to the model's distribution as steps get shorter.

With exact posteriors, any order of revealing keeps that distribution, as long as the order does not
depend on the tokens to be revealed. With `confidence`, the rule gives the number of revealed masks
and the most confident are revealed first ("position": from left to right; "random": at random).
With `window`, only the first masks compete: `window` times as many as are revealed.

A text has at most `length` tokens. Masks that do not fit are not inserted; which ones is random.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.contracts.packed import PackedBatch
from partita.contracts.shapes import Marks, Tokens
from partita.errors import require, require_int, require_known, require_positive
from partita.methods.contracts import FlexibleModel
from partita.networks.flexible import Answer
from partita.randomness import Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.confidence import CONFIDENCES, most_confident
from partita.samplers.drafts import Draft, fitting
from partita.samplers.insertion_rules import RULES, Rule
from partita.samplers.state import SamplerState
from partita.schedules import sampling_grid

Context = SamplingContext[FlexibleModel]

POSITION = "position"
RANDOM = "random"
MOST_COMPETING = 32


@dataclass(frozen=True)
class RevealOrder:
    """Which masks are revealed first, and how many of them compete."""

    confidence: str | None
    window: float | None

    def __post_init__(self) -> None:
        if self.confidence is not None:
            require_known(self.confidence, "confidence", sorted([POSITION, *CONFIDENCES]))
        if self.window is not None:
            require_positive(self.window, "window")
            problem = "lets masks compete, but nothing is compared"
            require(self.confidence is not None, "window", problem, "give a confidence")


@dataclass(frozen=True)
class Moment:
    """One step of the sampler, from t to s."""

    index: int
    t: Float64[Tensor, ""]
    s: Float64[Tensor, ""]
    last: bool


@sampler("insertion", family="flexible", default=True)
def insertion(
    context: Context,
    state: SamplerState,
    *,
    steps: int = 128,
    grid: str = "uniform",
    rule: str = "schedule",
    confidence: str | None = None,
    window: float | None = None,
    most: int | None = None,
) -> Tokens:
    """Insert masks and reveal them, along a grid of times; rows are padded with `end_id`.

    `most` is the largest number of masks that a step inserts into one gap; no limit by default.
    """
    chosen, model, order = RULES[rule](), context.model, RevealOrder(confidence, window)
    if most is not None:
        require_int(most, "most")
    times = sampling_grid(grid, steps).to(state.tokens.device)
    draft = Draft.of(state, model.mask_id, model.end_id)
    room = state.longest if state.longest is not None else model.length
    for index, (t, s) in enumerate(itertools.pairwise(times)):
        step = Moment(index, t, s, index + 1 == steps)
        if not bool(draft.hidden.any()) and (step.last or not bool(draft.insertable.any())):
            continue
        text = draft.text()
        queries = (text.tokens == model.mask_id).nonzero()[:, 0]
        with torch.no_grad():
            log_probs, answer = model.ask(text, t.expand(state.batch), queries, context.label)
        revealed, drawn = _reveals(context, draft, chosen, log_probs, step, order)
        draft.write(revealed, drawn)
        moved = torch.arange(revealed.shape[1] + 1, device=t.device).expand(state.batch, -1)
        if not step.last:
            moved = draft.insert(_insertions(context, draft, chosen, answer, step, room, most))
        rows, old = revealed.nonzero(as_tuple=True)
        context.report(index, steps, draft.state(), rows, moved[rows, old])
    return draft.tokens


def _reveals(
    context: Context,
    draft: Draft,
    rule: Rule,
    log_probs: Float[Tensor, "M V"],
    step: Moment,
    order: RevealOrder,
) -> tuple[Marks, Int64[Tensor, "B L"]]:
    """Which masks are revealed in this step, and a token for every mask."""
    hidden = draft.hidden
    rows, positions = hidden.nonzero(as_tuple=True)
    tokens = context.draw(log_probs, step.index, rows, positions)
    drawn = torch.zeros_like(draft.tokens).index_put((rows, positions), tokens)
    if step.last:
        return hidden, drawn
    coins = context.noise.uniform_at(Purpose.ORDER, step.index, rows, positions)
    due = coins < rule.reveal(context.model.process, step.t, step.s)
    revealed = torch.zeros_like(hidden).index_put((rows, positions), due)
    if order.confidence is None:
        return revealed, drawn
    if order.confidence == POSITION:
        scores = -positions.double()
    elif order.confidence == RANDOM:
        scores = context.noise.uniform_at(Purpose.CONFIDENCE, step.index, rows, positions)
    else:
        scores = CONFIDENCES[order.confidence](log_probs, tokens)
    table = torch.zeros_like(hidden, dtype=torch.float64).index_put((rows, positions), scores)
    count = revealed.sum(-1)
    return most_confident(table, _competing(hidden, count, order.window), count), drawn


def _insertions(
    context: Context,
    draft: Draft,
    rule: Rule,
    answer: Answer,
    step: Moment,
    room: int,
    at_once: int | None,
) -> Int64[Tensor, "B G"]:
    """How many masks each gap of each text receives, reduced to what fits."""
    # A draw of tokens checks this only if there is a mask; a NaN compares as if none were missing.
    problem = "the expected number of missing tokens is not finite"
    remedy = "the network's weights or inputs are broken"
    require(bool(answer.gaps.isfinite().all()), "logits", problem, remedy)
    gaps = PackedBatch.of_lengths(draft.lengths + 1, len(answer.gaps), draft.open.shape[1])
    rows, gap = gaps.indices
    noise, numbers = context.noise, (2 * step.index, 2 * step.index + 1)
    u = torch.stack([noise.uniform_at(Purpose.INSERT, k, rows, gap) for k in numbers], -1)
    packed = rule.inserted(context.model.process, step.t, step.s, answer, u)
    if at_once is not None:
        packed = packed.clamp(max=at_once)
    counts = torch.where(draft.insertable, draft.by_gap(packed), 0)
    left = room - draft.lengths
    most = int(counts.sum(-1).max()) if counts.numel() else 0
    if most <= int(left.min()):
        return counts
    return fitting(counts, left, noise.uniforms(Purpose.STATE, step.index, most))


def _competing(hidden: Marks, count: Int64[Tensor, "B"], window: float | None) -> Marks:
    """The first masks from the left, `window` times as many as will be revealed (32 at most)."""
    if window is None:
        return hidden
    most = (count * window).long().clamp(max=MOST_COMPETING)
    return hidden & (hidden.cumsum(-1) <= torch.maximum(most, count)[:, None])
