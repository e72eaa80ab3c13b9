"""Consistency of a score model: how far its scores are from those of any distribution.

At a masked position the true scores are alpha / (1 - alpha) times the posterior mean of the clean
token, so they sum to alpha / (1 - alpha) for any data (MD4, proposition 1). A network with softmax
outputs satisfies this by construction. Free scores violate it, and the reverse process that they
define is then not the reversal of the forward process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.batch import Batch
from partita.errors import require, require_int
from partita.methods.base import check_batch
from partita.methods.contracts import ScoreModel
from partita.methods.sedd import SEDD
from partita.moved import old_keywords
from partita.plotting import matplotlib, picture, plain_numbers
from partita.processes.ctmc import total_noise
from partita.randomness import Noise
from partita.samplers.front import as_labels, evaluating

TIMES = tuple(i / 20 for i in range(1, 21))


@dataclass(frozen=True)
class Consistency:
    """Sums of scores at the masked positions of one time, each divided by alpha / (1 - alpha)."""

    time: float
    alpha: float
    target: float
    """alpha / (1 - alpha), the sum that the scores of a position should have."""
    mean: float
    """Mean of sum / target: 1 for a consistent model, as `low` and `high`."""
    low: float
    """The 5 % quantile of sum / target."""
    high: float
    """The 95 % quantile of sum / target."""
    deviation: float
    """Mean of |log(sum / target)|: 0 for a consistent model."""
    positions: int
    """Number of masked positions; if 0, the other numbers are NaN."""


@old_keywords(valid="is_token")
def score_consistency(
    model: SEDD,
    tokens: Int64[Tensor, "N L"],
    times: Sequence[float] = TIMES,
    *,
    batch_size: int = 64,
    seed: int = 0,
    is_token: Bool[Tensor, "N L"] | None = None,
    label: int | Int64[Tensor, "N"] | None = None,
) -> list[Consistency]:
    """One row for each time: tokens are masked as at that time, scores computed at the masks."""
    masks = isinstance(model, ScoreModel) and model.graph.mask_id is not None
    require(masks, "model", "must be a score model under the absorbing graph")
    require_int(batch_size, "batch_size")
    require(len(times) > 0, "times", "is empty")
    for time in times:
        require(0 < time <= 1, "times", f"must lie in (0, 1], got {time}")
    real = check_batch(Batch.of(tokens, is_token=is_token), model).real
    tokens = torch.where(real, tokens, model.mask_id)
    labels = as_labels(label, tokens.shape[0], tokens.device)
    batches = torch.split(torch.arange(len(tokens), device=tokens.device), batch_size)

    def log_ratios(rows: Tensor, time: float, step: int) -> Tensor:
        """log of sum / target at the masked positions of some rows, in float64."""
        t = torch.full((len(rows),), time, dtype=torch.float64, device=tokens.device)
        sigma = total_noise(model.schedule, t)
        state = model.graph.noised(tokens[rows], sigma, real[rows], Noise(seed, rows), step)
        where, positions = ((state == model.mask_id) & real[rows]).nonzero(as_tuple=True)
        label = None if labels is None else labels[rows]
        log_score = model.log_score(state, t, where, positions, label)[..., : model.graph.tokens]
        total = log_score.logsumexp(-1).double()
        return total + torch.log(torch.expm1(sigma))[where]

    with evaluating(model), torch.no_grad():
        return [
            _row(model, time, torch.cat([log_ratios(rows, time, step) for rows in batches]))
            for step, time in enumerate(times)
        ]


def _row(model: SEDD, time: float, log_ratios: Tensor) -> Consistency:
    t = torch.tensor(time, dtype=torch.float64)
    alpha, hidden = float(model.schedule.alpha(t)), float(model.schedule.one_minus_alpha(t))
    ratios, count = log_ratios.exp(), log_ratios.numel()
    low, high = (
        float(ratios.cpu().kthvalue(1 + round(share * (count - 1))).values) if count else math.nan
        for share in (0.05, 0.95)
    )
    mean, deviation = float(ratios.mean()), float(log_ratios.abs().mean())
    return Consistency(time, alpha, alpha / hidden, mean, low, high, deviation, count)


def consistency_table(rows: Sequence[Consistency]) -> str:
    """The rows as text in columns."""
    head = f"{'t':>6} {'alpha':>8} {'target':>10} {'mean':>8} {'5 %':>8} {'95 %':>8} "
    lines = [head + f"{'|log|':>8} {'masks':>8}"]
    for row in rows:
        shares = " ".join(f"{x:8.4f}" for x in (row.mean, row.low, row.high, row.deviation))
        lines.append(
            f"{row.time:6.3f} {row.alpha:8.5f} {row.target:10.4g} {shares} {row.positions:8d}"
        )
    return "\n".join(lines)


def plot_consistency(rows: Sequence[Consistency], path: Path) -> None:
    """Sum of scores over its target against the time, as a PNG; a consistent model stays at 1."""
    require(len(rows) > 0, "rows", "is empty")
    times, low, high, mean = zip(*((r.time, r.low, r.high, r.mean) for r in rows), strict=True)
    with picture(path, 7, 4) as (_, (axes,)):
        axes.fill_between(times, low, high, alpha=0.25, label="5 to 95 %")
        axes.plot(times, mean, marker="o", markersize=3, label="mean")
        axes.axhline(1, color="grey", linestyle=":", label="any distribution")
        axes.set(yscale="log", xlabel="t", ylabel="sum of scores / (alpha / (1 - alpha))")
        ticker = matplotlib("ticker")
        axes.yaxis.set_major_locator(ticker.MaxNLocator(8))  # the range is far less than ten-fold
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        plain_numbers(axes.yaxis)
        axes.grid(alpha=0.3)
        axes.legend()
