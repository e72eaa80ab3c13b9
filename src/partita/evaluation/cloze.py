"""Blanks whose answer is known: whether a model fills them in, and its nats for the answer.

An autoregressive model reads what stands before a blank, and its nats are exact. A masked model
reads both sides. With the context c always visible, its predictions are those of a masked model
over the n positions x of the blank alone, so the bounds for whole sequences hold here too. Let
positions be revealed one at a time in an order drawn uniformly: p(x | c) is the mean over orders
of the product of the predictions, and by Jensen's inequality

    -log p(x | c) <= mean over orders of  sum_i -log p(x_o(i) | x_o(1..i-1), c).

A set H of k hidden positions is what is left in an order with probability 1 / C(n, k), and each of
its positions is the next one with probability 1 / k. Sorted by H, the right-hand side is

    sum over non-empty H of  1 / (k C(n, k))  sum over l in H of -log p(x_l | what is not in H, c)

which is the mean of the corruption "subset" (k uniform on 1..n, weight n / k) over these n
positions: it is sampled for long blanks, and summed exactly for short ones. The bound is an
equality if the predictions are the conditionals of one distribution, for then every order gives
the same product. For a model conditioned on the time, the bound is that of its own corruption, over
the same positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.contracts.prompt import Prompt
from partita.errors import InputError, require_int
from partita.execution.choice import sample
from partita.likelihood.bounds import require_finite, standard_error
from partita.methods.ar import AR
from partita.methods.masked_method import MaskedMethod
from partita.processes.corruption import Corrupted, Subset
from partita.randomness import Noise
from partita.samplers.front import evaluating

ENUMERATED = 3  # positions of a blank whose 2^n - 1 hidden sets are all visited


@dataclass(frozen=True)
class Blank:
    """A text of which the tokens from `start` to `stop` are hidden."""

    ids: list[int]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of hidden tokens."""
        return self.stop - self.start

    @property
    def answer(self) -> list[int]:
        """The hidden tokens."""
        return self.ids[self.start : self.stop]


@dataclass(frozen=True)
class Answers:
    """A model's results on some blanks."""

    right: Bool[Tensor, "N"]
    """Whether the tokens filled in are exactly those of the answer."""
    nats: Float64[Tensor, "replicates N"]
    """-log p of each answer, or draws of its bound; equal in all replicates if it is exact."""


@dataclass(frozen=True)
class Mean:
    """A mean over questions, with two standard errors."""

    value: float
    error: float
    """From the choice of questions; it includes the error of the draws."""
    draws_error: float
    """From the draws of a bound alone; 0 for an exact value."""

    @staticmethod
    def of(values: Float64[Tensor, "replicates N"]) -> Mean:
        """The mean of values for each replicate and question; exact ones have one replicate."""
        each = values.mean(0)
        return Mean(float(each.mean()), standard_error(each), standard_error(values.mean(1)))


Progress = Callable[[int], None]


def answered(
    method: object,
    blanks: Sequence[Blank],
    *,
    fill: bool = True,
    replicates: int = 8,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Answers:
    """Fill the blanks in greedily (optional), and measure the nats of their answers.

    A masked model reveals one token at a time, the most certain first; an autoregressive one is
    right if each token of the answer is the most probable after those before it. Texts of the same
    length share a batch, so none is padded; a blank's draws do not depend on its batch. `progress`
    is called with the number of blanks just processed: each counts twice if it is also filled in.
    """
    require_answering(method)
    require_int(batch_size, "batch_size")
    require_int(replicates, "replicates", 2)
    advance = progress or (lambda _count: None)
    with evaluating(method), torch.no_grad():
        if isinstance(method, AR):
            found = _causal(method, blanks, batch_size, lambda n: advance(2 * n if fill else n))
        else:
            assert isinstance(method, MaskedMethod)
            right = torch.zeros(len(blanks), dtype=torch.bool)
            for batch in _batches(blanks, batch_size, method) if fill else ():
                right[batch.numbers] = _filled(method, batch).cpu()
                advance(len(batch.numbers))
            found = Answers(right, _bounds(method, blanks, replicates, batch_size, seed, advance))
    require_finite(found.nats)
    return found


def require_answering(method: object) -> None:
    """Refuse models that cannot predict a given part of a text."""
    if not isinstance(method, AR | MaskedMethod):
        kind = type(method).__name__
        problem = f"{kind} predicts no tokens at given places with the rest in view"
        raise InputError("model", problem, "use a masked model (mdlm, md4, pgm, ...) or ar")


# Batches -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """Blanks in texts of one length."""

    numbers: Int64[Tensor, "B"]
    tokens: Int64[Tensor, "B L"]
    hidden: Bool[Tensor, "B L"]


def _batches(
    blanks: Sequence[Blank],
    size: int,
    method: AR | MaskedMethod,
    numbers: Sequence[int] | None = None,
    *,
    same_size: bool = False,
) -> Iterator[_Batch]:
    """Batches of blanks with texts of one length (and, if `same_size`, blanks of one size)."""
    device = next(method.parameters()).device
    groups: dict[tuple[int, int], list[int]] = {}
    for number in range(len(blanks)) if numbers is None else numbers:
        blank = blanks[number]
        groups.setdefault((len(blank.ids), blank.size if same_size else 0), []).append(number)
    for _, group in sorted(groups.items()):
        for first in range(0, len(group), size):
            batch = torch.tensor(group[first : first + size])
            chosen = [blanks[number] for number in batch.tolist()]
            tokens = torch.tensor([blank.ids for blank in chosen], dtype=torch.int64)
            starts, stops = torch.tensor([[blank.start, blank.stop] for blank in chosen]).T
            positions = torch.arange(tokens.shape[1])
            hidden = (positions >= starts[:, None]) & (positions < stops[:, None])
            yield _Batch(batch, tokens.to(device), hidden.to(device))


# Autoregressive models ---------------------------------------------------------------------------


def _causal(method: AR, blanks: Sequence[Blank], size: int, advance: Progress) -> Answers:
    """Exact nats and the most probable tokens, each given the true ones before it."""
    right = torch.zeros(len(blanks), dtype=torch.bool)
    nats = torch.zeros(1, len(blanks), dtype=torch.float64)
    seen = [replace(blank, ids=blank.ids[: blank.stop]) for blank in blanks]
    for batch in _batches(seen, size, method):
        queries = Queries(*batch.hidden.nonzero(as_tuple=True))
        logits = method.network(method.shifted(batch.tokens), queries=queries)
        log_probs, target = method.log_probabilities(logits), batch.tokens[batch.hidden]
        costs = -log_probs.double().gather(-1, target[:, None])[:, 0]
        total = costs.new_zeros(len(batch.numbers)).index_add(0, queries.rows, costs)
        wrong = queries.rows[log_probs.argmax(-1) != target]
        nats[0, batch.numbers] = total.cpu()
        right[batch.numbers] = (
            torch.ones_like(total, dtype=torch.bool).index_fill(0, wrong, 0).cpu()
        )
        advance(len(batch.numbers))
    return Answers(right, nats)


# Masked models -----------------------------------------------------------------------------------


def _filled(method: MaskedMethod, batch: _Batch) -> Bool[Tensor, "B"]:
    """Whether revealing one token at a time, the most certain first, gives the answers."""
    tokens = sample(
        method,
        prompt=Prompt(batch.tokens, ~batch.hidden),
        sampler="confidence",
        steps=int(batch.hidden.sum(-1).max()),
        counts="linear",
        temperature=0.0,
    )
    return (tokens == batch.tokens).all(-1)


def _bounds(
    method: MaskedMethod,
    blanks: Sequence[Blank],
    replicates: int,
    size: int,
    seed: int,
    advance: Progress,
) -> Float64[Tensor, "replicates N"]:
    """Bounds: summed over all hidden sets if those are few, else sampled."""
    nats = torch.zeros(replicates, len(blanks), dtype=torch.float64)
    short = [not method.timed and blank.size <= ENUMERATED for blank in blanks]
    few = [number for number, is_short in enumerate(short) if is_short]
    many = [number for number, is_short in enumerate(short) if not is_short]
    for batch in _batches(blanks, size, method, few, same_size=True):
        nats[:, batch.numbers] = _enumerated(method, batch).cpu()
        advance(len(batch.numbers))
    for batch in _batches(blanks, size, method, many):
        for step in range(replicates):
            noise = Noise(seed, batch.numbers.to(batch.tokens.device))
            nats[step, batch.numbers] = _drawn(method, batch, noise, step, len(blanks)).cpu()
        advance(len(batch.numbers))
    return nats


def _enumerated(method: MaskedMethod, batch: _Batch) -> Float64[Tensor, "B"]:
    """The sum over all non-empty sets of hidden positions, for blanks of one size."""
    rows, positions = batch.hidden.nonzero(as_tuple=True)
    size = len(rows) // len(batch.numbers)
    total = torch.zeros(len(batch.numbers), dtype=torch.float64, device=rows.device)
    for hidden in range(1, 2**size):
        member = (hidden >> torch.arange(size, device=rows.device)) & 1
        chosen = member.bool().repeat(len(batch.numbers))
        masked = torch.zeros_like(batch.hidden)
        masked[rows[chosen], positions[chosen]] = True
        count = int(member.sum())
        weight = torch.full(masked.shape, 1 / (count * math.comb(size, count)), device=rows.device)
        total += _weighed(method, batch, Corrupted(masked, weight, None))
    return total


def _drawn(
    method: MaskedMethod, batch: _Batch, noise: Noise, step: int, count: int
) -> Float64[Tensor, "B"]:
    """One draw of the bound; times or set sizes are spread evenly over all `count` blanks."""
    corruption = method.bound_corruption if method.timed else Subset()
    drawn = corruption.draw(batch.hidden, noise, step, count)
    ends = method.bound_ends(corruption) * batch.hidden.sum(-1)
    return _weighed(method, batch, drawn) + ends


def _weighed(method: MaskedMethod, batch: _Batch, drawn: Corrupted) -> Float64[Tensor, "B"]:
    rows = Batch.of(batch.tokens, is_token=batch.hidden)
    return method.loss_given(rows, drawn).per_token.double().sum(-1)
