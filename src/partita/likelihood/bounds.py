"""Likelihood bounds with their Monte Carlo error (for exact values see `enumeration.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.estimate import Estimate
from partita.contracts.layouts import DENSE, Layout, PackedLayout
from partita.errors import require, require_int
from partita.methods.base import check_batch
from partita.methods.contracts import TextMethod
from partita.methods.masked_method import MaskedMethod
from partita.methods.pgm import PartitionMethod
from partita.moved import old_keywords
from partita.processes.corruption import Corruption, make_corruption
from partita.randomness import Noise
from partita.samplers.front import as_labels, evaluating


@old_keywords(valid="is_token", law="corruption")
def nelbo(
    method: TextMethod,
    tokens: Int64[Tensor, "N L"],
    *,
    corruption: str | Corruption | None = None,
    replicates: int = 8,
    batch_size: int = 64,
    seed: int = 0,
    is_token: Bool[Tensor, "N L"] | None = None,
    label: int | Int64[Tensor, "N"] | None = None,
    groups: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Estimate the negative evidence lower bound of some sequences; for AR the exact value.

    Each replicate visits every sequence once with one low-discrepancy set of times, scattered over
    the sequences; replicates are independent, so their spread gives the standard error.
    `corruption` is "continuous", "discrete", "subset" or a `Corruption`; the default is the
    method's own, if that gives a bound.
    A partition method (pgm, mdlm-complementary) predicts both groups of each partition, which
    lowers the error; `groups=1` predicts one, as MDLM does. Both estimate the same bound.
    `is_token` is False for padding, which does not count, and which no other token reads.
    `progress` is called with the share of the work that is done, from 0 to 1.
    """
    kind, fits = type(method).__name__, isinstance(method, TextMethod)
    remedy = "a loaded model has a `method`; DDPM has a `bound` of its own"
    require(fits, "method", f"{kind} is no method of tokens", remedy)
    batch = check_batch(Batch.of(tokens, is_token=is_token), method)
    choices = _choices(method, corruption, groups)
    totals = replicate_nats(
        method, tokens, batch.real, replicates, batch_size, seed, label, progress, **choices
    )
    per_token = totals / batch.count + method.bound_ends(choices.get("corruption"))
    return Estimate(float(per_token.mean()), standard_error(per_token), batch.count)


def replicate_nats(
    method: TextMethod,
    tokens: Int64[Tensor, "N L"],
    is_token: Bool[Tensor, "N L"],
    replicates: int,
    batch_size: int = 64,
    seed: int = 0,
    label: int | Int64[Tensor, "N"] | None = None,
    progress: Callable[[float], None] | None = None,
    **choices: Any,
) -> Float64[Tensor, "replicates"]:
    """The nats of all sequences together, for each replicate (an exact method has one).

    `choices` go to the method's loss. Sequences may be empty if the method gives them a likelihood.
    """
    require_int(batch_size, "batch_size")
    labels = as_labels(label, tokens.shape[0], tokens.device)
    numbers = scattered(len(tokens)).to(tokens.device)
    if not method.exact:
        require_int(replicates, "replicates", 2)
    passes = 1 if method.exact else replicates
    totals = torch.zeros(passes, dtype=torch.float64)
    with evaluating(method), torch.no_grad():
        for step in range(passes):
            for batch in _batches(method, tokens, is_token, labels, batch_size):
                loss = method.loss(batch, Noise(seed, numbers[batch.rows]), step, **choices)
                totals[step] += float(loss.per_sequence.double().sum())
                if progress is not None:
                    progress((step + (int(batch.rows[-1]) + 1) / len(tokens)) / passes)
    require_finite(totals)
    return totals


def require_finite(nats: Float64[Tensor, "..."]) -> None:
    """Raise an InputError if a broken model gave NaN or infinity, which would spoil every mean."""
    total = float(nats.sum())
    problem = f"it needs {total} nats for what it is asked, since its outputs overflow"
    remedy = "take an earlier checkpoint, or train with a lower training.learning_rate"
    require(math.isfinite(total), "model", problem, remedy)


def scattered(count: int) -> Int64[Tensor, "{count}"]:
    """A permutation of 0 to n - 1 that separates neighbors: multiples of about n / 1.618.

    The times of a replicate rise with the number of a sequence, and a text is harder in some parts
    than in others. With consecutive numbers, one replicate would hide many tokens of a hard part
    and the next one few.
    """
    stride = round(count * (math.sqrt(5) - 1) / 2)
    while math.gcd(stride, count) > 1:
        stride += 1
    return torch.arange(count) * stride % max(count, 1)


def standard_error(replicates: Float64[Tensor, "replicates"]) -> float:
    """The standard error of the mean of independent replicates; 0 for an exact value."""
    count = len(replicates)
    return float(replicates.std()) / math.sqrt(count) if count > 1 else 0.0


def _choices(
    method: TextMethod, corruption: str | Corruption | None, groups: int | None
) -> dict[str, Any]:
    """The arguments of a method's loss beside the batch."""
    kind, chosen = type(method).__name__, dict[str, Any]()
    if isinstance(method, MaskedMethod):
        chosen["corruption"] = _bound_corruption(method, corruption)
    else:
        problem = f"there is no choice of it for {kind}"
        require(corruption is None, "corruption", problem, "leave it out")
    if groups is not None:
        makes = isinstance(method, PartitionMethod)
        require(makes, "groups", f"{kind} makes no partitions", "leave it out")
        chosen["groups"] = groups
    return chosen


def _batches(
    method: TextMethod, tokens: Tensor, is_token: Tensor, labels: Tensor | None, size: int
) -> Iterator[Batch]:
    """Batches of consecutive rows, with their numbers among all rows."""
    for start in range(0, len(tokens), size):
        rows = torch.arange(start, min(start + size, len(tokens)), device=tokens.device)
        real = is_token[rows]
        yield Batch.of(
            tokens[rows],
            is_token=real,
            label=None if labels is None else labels[rows],
            layout=apart(real) if method.reads_padding else None,
            rows=rows,
            size=len(tokens),
        )


def apart(is_token: Tensor) -> Layout:
    """A layout in which real tokens read only real tokens; each run of padding is a document."""
    if bool(is_token.all()):
        return DENSE
    return PackedLayout.of_documents(is_token != F.pad(is_token[:, 1:], (0, 1)))


def _bound_corruption(method: MaskedMethod, corruption: str | Corruption | None) -> Corruption:
    wanted = method.bound_corruption if corruption is None else corruption
    chosen = make_corruption(wanted, method.schedule)
    problem = f"the weights of {type(chosen).__name__} are not those of a bound"
    remedy = "leave it out, or use 'subset', 'continuous' or 'discrete'"
    require(chosen.bound, "corruption", problem, remedy)
    method.check_corruption(chosen)
    return chosen
