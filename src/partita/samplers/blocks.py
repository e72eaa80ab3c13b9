"""Semi-autoregressive sampling: blocks from left to right, any masked sampler inside a block.

While a block is filled, the model reads everything before it and, as far as the model's length
allows, the known and still hidden positions after it. For texts longer than the model, it reads a
sliding window, which ends with the block and holds as much of what came before as fits.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from partita.contracts.shapes import Tokens
from partita.errors import require, require_int
from partita.methods.contracts import Denoiser
from partita.samplers.base import SAMPLERS, SamplingContext, Step, sampler
from partita.samplers.state import SamplerState

Context = SamplingContext[Denoiser]


def window(end: int, model_length: int, total: int) -> tuple[int, int]:
    """The positions [start, stop) that the model reads while it fills the block ending at `end`."""
    start = max(0, end - model_length)
    return start, min(start + model_length, total)


@sampler("blocks", family="masked")
def blocks(
    context: Context,
    state: SamplerState,
    *,
    block_length: int | None = None,
    inner: str = "confidence",
    **options: Any,
) -> Tokens:
    """Fill blocks of `block_length` positions, one after the other, by the sampler `inner`.

    `block_length` is 32 by default, or the model's length if that is less. Further options go to
    the inner sampler; its default number of steps is one per position. Blocks start at a row's
    first wanted position, so they depend on its prompt and not on its batch. Rows whose blocks
    start at the same position are filled together.
    """
    limit = context.model.length
    block_length = min(32, limit) if block_length is None else block_length
    require_int(block_length, "block_length")
    problem = f"must lie between 1 and the model's length {limit}, got {block_length}"
    require(block_length <= limit, "block_length", problem)
    fill = partial(_inner(inner), **options)
    if "steps" in inspect.signature(fill).parameters:
        fill = partial(fill, steps=options.get("steps", block_length))
    numbers = itertools.count()
    begins = state.remaining.long().argmax(-1)
    for begin in torch.unique(begins).tolist():
        rows = ((begins == begin) & state.remaining.any(-1)).nonzero()[:, 0]
        if rows.numel():
            _fill_rows(context, state, rows, begin, block_length, fill, numbers)
    return state.tokens


def _inner(name: str) -> Callable[..., Tensor]:
    """The sampler function that fills a block, by its name."""
    fitting = [other for other in SAMPLERS if SAMPLERS[other].family == "masked"]
    fitting.remove("blocks")
    remedy = f"known: {', '.join(fitting)}"
    require(name in fitting, "inner", f"{name!r} cannot fill a block", remedy)
    return SAMPLERS[name].run


def _fill_rows(
    context: Context,
    state: SamplerState,
    rows: Tensor,
    begin: int,
    block_length: int,
    fill: Callable[[Context, SamplerState], Tensor],
    numbers: Iterator[int],
) -> None:
    """Fill the blocks of some rows, from position `begin` on."""
    total = state.tokens.shape[1]
    for index, start in enumerate(range(begin, total, block_length)):
        end = min(start + block_length, total)
        low, high = window(end, context.model.length, total)
        part = state.part(rows, low, high)
        part.wanted[:, : start - low] = False
        part.wanted[:, end - low :] = False
        if not bool(part.remaining.any()):
            continue
        fill(
            replace(
                context,
                noise=context.noise.select(rows).fork(index + 1),
                label=None if context.label is None else context.label[rows],
                callback=partial(_report, context, state, rows, low, numbers),
            ),
            part,
        )
        state.tokens[rows, low:high] = part.tokens
        state.revealed[rows, low:high] = part.revealed


def _report(
    context: Context,
    state: SamplerState,
    rows: Tensor,
    low: int,
    numbers: Iterator[int],
    step: Step,
) -> None:
    """Translate a step inside a block into one of the whole state, for the user's callback."""
    whole, positions = rows[step.rows], step.positions + low
    state.write(whole, positions, step.state.tokens[step.rows, step.positions])
    context.report(next(numbers), None, state, whole, positions)
