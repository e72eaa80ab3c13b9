"""Profile of a masked model's bound: nats of a hidden token by the share of hidden tokens.

With k of n tokens hidden at random, let c(k) be the mean nats of a hidden one. The bound per token
is the mean of c(1), ..., c(n): reveal the tokens one by one in random order, and c(k) is what the
next one costs. For a model that is conditioned on the time it is the integral over a in [0, 1] of
the nats of hidden tokens, divided by n a, with each token hidden with probability a (MD4, section
2; a = 1 - alpha makes every schedule the same). Either way the bound is the area under the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.estimate import Estimate
from partita.contracts.layouts import DENSE
from partita.errors import require, require_int
from partita.likelihood.bounds import apart, require_finite, standard_error
from partita.methods.base import check_batch
from partita.methods.masked_method import MaskedMethod
from partita.moved import old_keywords
from partita.plotting import new_figure, save_figure
from partita.randomness import Noise, Purpose
from partita.samplers.front import as_labels, evaluating

LEVELS = 16


@dataclass(frozen=True)
class Level:
    """A range of shares of hidden tokens, and the mean cost of a hidden token in it."""

    hidden_from: float
    hidden_to: float
    cost: Estimate


@old_keywords(valid="is_token")
def profile(
    method: object,
    tokens: Int64[Tensor, "N L"],
    is_token: Bool[Tensor, "N L"] | None = None,
    *,
    levels: int = LEVELS,
    replicates: int = 2,
    batch_size: int = 64,
    seed: int = 0,
    label: int | Int64[Tensor, "N"] | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Level]:
    """Measure the curve at levels of equal width; each replicate visits every sequence at each."""
    require_profiled(method)
    assert isinstance(method, MaskedMethod)
    is_token = check_batch(Batch.of(tokens, is_token=is_token), method).real
    require_int(levels, "levels")
    require_int(replicates, "replicates", 2)
    labels = as_labels(label, tokens.shape[0], tokens.device)
    totals = torch.zeros(replicates, levels, dtype=torch.float64)
    with evaluating(method), torch.no_grad():
        for replicate in range(replicates):
            for level in range(levels):
                for start in range(0, len(tokens), batch_size):
                    part = slice(start, start + batch_size)
                    rows = torch.arange(len(tokens), device=tokens.device)[part]
                    noise, step = Noise(seed, rows), replicate * levels + level
                    share = _shares(noise, step, level, levels)
                    given = tokens[part], is_token[part], None if labels is None else labels[part]
                    totals[replicate, level] += _nats(method, *given, share, noise, step)
                if progress is not None:
                    progress((step + 1) / (replicates * levels))
    require_finite(totals)
    count = int(is_token.sum())
    costs = [Estimate(float(m.mean()), standard_error(m), count) for m in (totals / count).T]
    return [Level(j / levels, (j + 1) / levels, cost) for j, cost in enumerate(costs)]


def require_profiled(method: object) -> None:
    """Raise an InputError unless the method is a masked one, whose bound is such an area."""
    problem = f"there is none of {type(method).__name__}"
    remedy = "it is for mdlm, mdlm-complementary, md4, maskgit and pgm"
    require(isinstance(method, MaskedMethod), "profile", problem, remedy)


def _shares(noise: Noise, step: int, level: int, levels: int) -> Float64[Tensor, "B"]:
    """A share of hidden tokens for each row, somewhere in the level."""
    return (level + noise.uniforms(Purpose.TIME, step, 1)[:, 0]) / levels


def _nats(
    method: MaskedMethod,
    tokens: Tensor,
    is_token: Tensor,
    label: Tensor | None,
    share: Float64[Tensor, "B"],
    noise: Noise,
    step: int,
) -> float:
    """n times the mean nats of a row's hidden tokens, over all rows of a batch."""
    u = noise.uniforms(Purpose.MASK, step, tokens.shape[1])
    length = is_token.sum(-1)
    if method.timed:
        hidden = (u < share[:, None]) & is_token
        worth = 1 / share
    else:
        count = (share * length).long() + 1  # uniform on the numbers of hidden tokens in the level
        rank = torch.where(is_token, u, 2.0).argsort(-1).argsort(-1)
        hidden = (rank < count[:, None]) & is_token
        worth = length / count
    rows, positions = hidden.nonzero(as_tuple=True)
    if not len(rows):
        return 0.0
    log_probs = method.predict(
        tokens,
        is_token & ~hidden,
        rows,
        positions,
        method.schedule.inverse(1 - share) if method.timed else None,
        label,
        layout=apart(is_token) if method.reads_padding else DENSE,
    )
    nats = -log_probs.gather(-1, tokens[rows, positions][:, None])[:, 0].double()
    return float((nats * worth[rows]).sum())


def draw_profiles(curves: Mapping[str, Sequence[Level]], path: Path) -> None:
    """Bits of a hidden token against the share that is hidden, for one model or several."""
    figure = new_figure(5, 3.6)
    axes = figure.subplots()
    alone = len(curves) == 1
    for name, levels in curves.items():
        edges = [levels[0].hidden_from, *(level.hidden_to for level in levels)]
        bits, errors = [x.cost.bits for x in levels], [x.cost.bits_error for x in levels]
        area = sum(x.cost.bits * (x.hidden_to - x.hidden_from) for x in levels)
        shape = axes.stairs(bits, edges, fill=alone, alpha=0.4 if alone else 1, lw=1.2)
        shape.set_label(f"{name}: {area:.3f}")
        middles = [(level.hidden_from + level.hidden_to) / 2 for level in levels]
        axes.errorbar(middles, bits, errors, fmt="none", ecolor="0.4", capsize=2, lw=0.8)
    axes.legend(title="area (the bound), bits per token", fontsize="small", title_fontsize="small")
    axes.set(xlabel="share of hidden tokens", ylabel="bits of a hidden token", xlim=(0, 1))
    axes.set_ylim(bottom=0)
    save_figure(figure, path)
