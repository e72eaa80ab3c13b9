"""Halton order: cells of a grid in a sequence that spreads evenly (Besnier et al., 2025).

Point i of the Halton sequence has the digits of i, mirrored at the point: in base 2 for the row,
in base 3 for the column. The cells of a grid are revealed in the order in which the sequence first
visits them. The tokens of one step are then far apart and depend little on each other, so drawing
them independently loses little, and no confidence is needed to choose them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.contracts.shapes import Tokens
from partita.errors import require, require_int
from partita.methods.contracts import Denoiser
from partita.randomness import Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.counts import reveal_counts
from partita.samplers.planned import reveal_in_order
from partita.samplers.state import SamplerState

ROW_BASE, COLUMN_BASE = 2, 3


def visited(index: Int64[Tensor, "N"], base: int, cells: int) -> Int64[Tensor, "N"]:
    """The index of the part of [0, 1), cut in `cells` equal parts, that holds each point."""
    mirrored, scale, rest = torch.zeros_like(index), torch.ones_like(index), index.clone()
    while bool(rest.any()):
        left = rest > 0
        mirrored = torch.where(left, mirrored * base + rest % base, mirrored)
        scale = torch.where(left, scale * base, scale)
        rest = rest // base
    return mirrored * cells // scale


@lru_cache(maxsize=16)
def halton_order(rows: int, columns: int) -> Int64[Tensor, "cells"]:
    """The cells of a grid (row * columns + column) in the order of first visits, from point 1."""
    cells, points = rows * columns, 4 * rows * columns
    while True:
        index = torch.arange(1, points + 1, device="cpu")
        cell = visited(index, ROW_BASE, rows) * columns + visited(index, COLUMN_BASE, columns)
        first = torch.full((cells,), points).scatter_reduce(0, cell, index - 1, "amin")
        if int(first.max()) < points:  # every cell has been visited
            return first.argsort()
        points *= 2


def halton_ranks(rows: int, columns: int, roll: Int64[Tensor, "B"]) -> Int64[Tensor, "B cells"]:
    """The rank of each cell in the order; with a roll k, the order begins with its last k cells."""
    order = halton_order(rows, columns).to(roll.device)
    return (order.argsort() + roll[:, None]) % len(order)


@sampler("halton", family="masked", planned=True)
def halton(
    context: SamplingContext[Denoiser],
    state: SamplerState,
    *,
    steps: int = 32,
    counts: str | Sequence[int] = "arccos",
    columns: int | None = None,
    roll: bool = False,
) -> Tokens:
    """Reveal the cells of a grid in Halton order, a planned number per step.

    The default of `columns` is the network's; a network without a grid has one column. With `roll`
    every sample starts at its own random point of the order. Known cells are skipped.
    """
    length = state.tokens.shape[1]
    wide = _columns(context.model) if columns is None else columns
    require_int(wide, "columns")
    whole = f"{length} positions are no whole number of rows of {wide}"
    require(length % wide == 0, "columns", whole)
    begin = (context.noise.uniforms(Purpose.ORDER, 0, 1)[:, 0] * length).long()
    ranks = halton_ranks(length // wide, wide, begin if roll else torch.zeros_like(begin))
    plan = reveal_counts(state.remaining.sum(-1), steps, counts)
    return reveal_in_order(context, state, ranks, plan)


def _columns(model: Denoiser) -> int:
    return model.sizes.grid or 1
