"""The reverse process of flexible length (FlexMDM): masks are inserted, then revealed.

A step goes from time t to s < t with what the model says at t. Each mask is revealed with some
chance, and gap i, where the model expects g_i tokens to be missing, receives masks; both from the
same state, at every place by itself. How likely they are is the rule's:

    rule          a mask is revealed                 masks that a gap receives
    schedule      (b_s - b_t) / (1 - b_t)            one, with probability 1 - (1 - p)^g, where
                                                     p = (a_s - a_t) / (1 - a_t)
    euler         w_b (t - s)                        one, with probability w_a g (t - s)
    tau-leaping   1 - exp(-w_b (t - s))              Poisson with the mean w_a g (t - s)

a and b are the schedules of insertion and unmasking, w = -alpha'/(1 - alpha). A model that has a
distribution of the counts lets `schedule` insert several masks at a time: as many of the missing
tokens as come up, each with probability p. The last step inserts nothing and reveals every mask.
All of them tend to the model's law as steps get shorter.

Any order of revealing leaves that law alone, as long as it does not look at what will be revealed.
With `confidence` as many masks are revealed as the rule says, but the surest ones first ("position"
takes them from left to right); `window` lets only the first so many times as many masks compete.

A text has at most `length` tokens. Masks that do not fit are not inserted; which ones is drawn.
"""

from __future__ import annotations

import itertools
import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from partita.categorical import sample_categorical
from partita.errors import require, require_positive
from partita.methods.base import Model
from partita.networks.flexible import Answer
from partita.processes.insertion import Interpolant
from partita.ragged import Ragged
from partita.randomness import Purpose
from partita.registry import Registry
from partita.samplers.base import Session, sampler
from partita.samplers.canvas import Canvas
from partita.samplers.confidence import CONFIDENCES, most_confident
from partita.samplers.drafts import Draft, fitting
from partita.schedules import sampling_grid

Times = tuple[Tensor, Tensor]
POSITION = "position"
MOST_COMPETING = 32


@runtime_checkable
class FlexibleModel(Model, Protocol):
    """A model of texts of any length. This is all that this sampler knows of one."""

    @property
    def process(self) -> Interpolant:
        """The schedules."""
        ...

    @property
    def end_id(self) -> int:
        """What fills up rows of shorter texts."""
        ...

    def ask(
        self,
        text: Ragged,
        t: Float[Tensor, "B"],
        queries: Int64[Tensor, "M"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "M V"], Answer]:
        """Log-probabilities at some masks of the packed texts, and what gaps are missing."""
        ...


# Rules -------------------------------------------------------------------------------------------


@runtime_checkable
class Rule(Protocol):
    """How likely a step's events are."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Float64[Tensor, ""]:
        """The chance that a mask is revealed."""
        ...

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Float64[Tensor, "G K"]
    ) -> Int64[Tensor, "G"]:
        """How many masks each gap receives, by uniform numbers (a rule may need but one)."""
        ...


RULES: Registry[type[Rule]] = Registry("rule")


@RULES.register("schedule")
class ScheduleRule:
    """The chances that follow from the schedules themselves."""

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
class EulerRule:
    """Rates times the length of a step, at most 1."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Tensor:
        return (process.unmasking.weight(t) * (t - s)).clamp(max=1)

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Tensor
    ) -> Tensor:
        return (u[:, 0] < process.insertion.weight(t) * (t - s) * answer.gaps.double()).long()


@RULES.register("tau-leaping")
class TauRule:
    """Poisson events at the rates of time t."""

    def reveal(self, process: Interpolant, t: Tensor, s: Tensor) -> Tensor:
        return -torch.expm1(-process.unmasking.weight(t) * (t - s))

    def inserted(
        self, process: Interpolant, t: Tensor, s: Tensor, answer: Answer, u: Tensor
    ) -> Tensor:
        return poisson(process.insertion.weight(t) * (t - s) * answer.gaps.double(), u[:, 0])


def insertion_chance(p: Float64[Tensor, ""], expected: Float[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """1 - (1 - p)^g: the chance that one of g missing tokens comes up."""
    return -torch.expm1(torch.log1p(-p) * expected.double())


def poisson(mean: Float64[Tensor, "G"], u: Float64[Tensor, "G"]) -> Int64[Tensor, "G"]:
    """Poisson numbers by inversion: how many terms of the distribution function u exceeds."""
    count, term = torch.zeros_like(mean, dtype=torch.int64), torch.exp(-mean)
    total = term.clone()
    most = int(mean.max() + 12 * math.sqrt(float(mean.max())) + 24) if mean.numel() else 0
    for k in range(1, most + 1):
        count += (u >= total).long()
        term = term * mean / k
        total = total + term
    return count


def binomial(
    size: Int64[Tensor, "G"], p: Float64[Tensor, ""], u: Float64[Tensor, "G"]
) -> Int64[Tensor, "G"]:
    """Binomial numbers by inversion."""
    n = size.double()
    count, term = torch.zeros_like(size), torch.exp(n * torch.log1p(-p))
    total = term.clone()
    for k in range(1, (int(size.max()) if size.numel() else 0) + 1):
        count += ((u >= total) & (k <= size)).long()
        term = term * (n - k + 1).clamp(min=0) / k * (p / (1 - p))
        total = total + term
    return count


# The sampler -------------------------------------------------------------------------------------


@sampler("insertion", family="flexible")
def insertion(
    session: Session[FlexibleModel],
    canvas: Canvas,
    *,
    steps: int = 128,
    grid: str = "uniform",
    rule: str = "schedule",
    confidence: str | None = None,
    window: float | None = None,
) -> Int64[Tensor, "B L"]:
    """Insert masks and reveal them, along a grid of times; rows are filled up with `end_id`."""
    chosen, model = RULES[rule](), session.model
    _check(confidence, window)
    times = sampling_grid(grid, steps).to(canvas.tokens.device)
    draft = Draft.of(canvas, model.mask_id, model.end_id)
    room = canvas.longest if canvas.longest is not None else model.length
    for index, (t, s) in enumerate(itertools.pairwise(times)):
        last = index + 1 == steps
        hidden = draft.hidden
        if not bool(hidden.any()) and (last or not bool(draft.insertable.any())):
            continue
        rows, positions = hidden.nonzero(as_tuple=True)
        text = draft.text()
        queries = (text.tokens == model.mask_id).nonzero()[:, 0]
        with torch.no_grad():
            log_probs, answer = model.ask(text, t.expand(canvas.batch), queries, session.label)
        tokens = session.draw(log_probs, index, rows, positions)
        coins = session.noise.uniform_at(Purpose.ORDER, index, rows, positions)
        due = coins < (1.0 if last else chosen.reveal(model.process, t, s))
        revealed = torch.zeros_like(hidden).index_put((rows, positions), due)
        if confidence is not None and not last:
            scores = _scores(confidence, log_probs, tokens, positions)
            table = torch.zeros_like(hidden, dtype=torch.float64)
            table[rows, positions] = scores
            count = revealed.sum(-1)
            revealed = most_confident(table, _competing(hidden, count, window), count)
        drawn = torch.zeros_like(draft.tokens).index_put((rows, positions), tokens)
        draft.write(revealed, drawn)
        moved = torch.arange(hidden.shape[1] + 1, device=hidden.device).expand(len(hidden), -1)
        if not last:
            moved = draft.insert(_insertions(session, draft, chosen, answer, t, s, index, room))
        where, old = revealed.nonzero(as_tuple=True)
        session.report(index, steps, draft.canvas(), where, moved[where, old])
    return draft.tokens


def _insertions(
    session: Session[FlexibleModel],
    draft: Draft,
    rule: Rule,
    answer: Answer,
    t: Tensor,
    s: Tensor,
    index: int,
    room: int,
) -> Int64[Tensor, "B G"]:
    """How many masks each gap of each text receives; what does not fit is left out."""
    gaps = Ragged(torch.zeros_like(answer.gaps, dtype=torch.int64), draft.lengths + 1)
    rows, places = gaps.rows, gaps.positions
    u = torch.stack(
        [session.noise.uniform_at(Purpose.INSERT, 2 * index + k, rows, places) for k in range(2)],
        -1,
    )
    packed = rule.inserted(session.model.process, t, s, answer, u)
    counts = torch.where(draft.insertable, draft.by_gap(packed), 0)
    left = room - draft.lengths
    most = int(counts.sum(-1).max()) if counts.numel() else 0
    if most <= int(left.min()):
        return counts
    lots = torch.arange(most, device=counts.device)[None]
    return fitting(counts, left, session.noise.uniform(Purpose.STATE, index, lots))


def _check(confidence: str | None, window: float | None) -> None:
    if confidence is not None and confidence != POSITION:
        _ = CONFIDENCES[confidence]
    if window is not None:
        require_positive(window, "window")
        problem = "lets masks compete, but nothing is compared"
        require(confidence is not None, "window", problem, "give a confidence")


def _scores(kind: str, log_probs: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    """How sure each mask is."""
    if kind == POSITION:
        return -positions.double()
    return CONFIDENCES[kind](log_probs, tokens)


def _competing(
    hidden: Bool[Tensor, "B L"], count: Int64[Tensor, "B"], window: float | None
) -> Bool[Tensor, "B L"]:
    """The first masks from the left, `window` times as many as will be revealed (32 at most)."""
    if window is None:
        return hidden
    most = (count * window).long().clamp(max=MOST_COMPETING)
    return hidden & (hidden.cumsum(-1) <= torch.maximum(most, count)[:, None])
