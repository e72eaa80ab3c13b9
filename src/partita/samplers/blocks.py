"""Semi-autoregressive sampling: blocks from left to right, any masked sampler inside a block.

A block sees everything before it and, as far as the model's length allows, the known and still
hidden positions after it. Beyond the model's length a window slides: it ends with the block and
keeps as much of what came before as fits.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.errors import require, require_int
from partita.methods.contracts import Denoiser
from partita.samplers.base import SAMPLERS, Session, Step, sampler
from partita.samplers.canvas import Canvas


def window(end: int, model_length: int, total: int) -> tuple[int, int]:
    """The positions that the model sees while it fills the block that ends at `end`."""
    start = max(0, end - model_length)
    return start, min(start + model_length, total)


@sampler("blocks", family="masked")
def blocks(
    session: Session[Denoiser],
    canvas: Canvas,
    *,
    block_length: int | None = None,
    inner: str = "confidence",
    **options: Any,
) -> Int64[Tensor, "B L"]:
    """Fill blocks of `block_length` positions (32 unless the model is shorter) by `inner`.

    Further options go to the inner sampler, which takes one step per position unless told.
    A row's blocks are counted from its first wanted position, so its prompt decides where they
    lie and its batch does not: rows that begin at the same place are filled together.
    """
    limit = session.model.length
    block_length = min(32, limit) if block_length is None else block_length
    require_int(block_length, "block_length")
    require(
        block_length <= limit,
        "block_length",
        f"must lie between 1 and the model's length {limit}, got {block_length}",
    )
    fill = partial(_inner(inner), **options)
    if "steps" in inspect.signature(fill).parameters:
        fill = partial(fill, steps=options.get("steps", block_length))
    numbers = itertools.count()
    begins = canvas.remaining.long().argmax(-1)
    for begin in torch.unique(begins).tolist():
        rows = ((begins == begin) & canvas.remaining.any(-1)).nonzero()[:, 0]
        if rows.numel():
            _fill_rows(session, canvas, rows, begin, block_length, fill, numbers)
    return canvas.tokens


def _inner(name: str) -> Callable[..., Tensor]:
    """The sampler that fills a block."""
    fitting = [other for other in SAMPLERS if SAMPLERS[other].family == "masked"]
    fitting.remove("blocks")
    require(
        name in fitting, "inner", f"{name!r} cannot fill a block", f"known: {', '.join(fitting)}"
    )
    return SAMPLERS[name].run


def _fill_rows(
    session: Session[Denoiser],
    canvas: Canvas,
    rows: Tensor,
    begin: int,
    block_length: int,
    fill: Callable[[Session[Denoiser], Canvas], Tensor],
    numbers: Iterator[int],
) -> None:
    """The blocks of some rows, from `begin` on."""
    total = canvas.tokens.shape[1]
    for index, start in enumerate(range(begin, total, block_length)):
        end = min(start + block_length, total)
        low, high = window(end, session.model.length, total)
        part = canvas.part(rows, low, high)
        part.wanted[:, : start - low] = False
        part.wanted[:, end - low :] = False
        if not bool(part.remaining.any()):
            continue
        fill(
            replace(
                session,
                noise=session.noise.select(rows).fork(index + 1),
                label=None if session.label is None else session.label[rows],
                callback=partial(_report, session, canvas, rows, low, numbers),
            ),
            part,
        )
        canvas.tokens[rows, low:high] = part.tokens
        canvas.revealed[rows, low:high] = part.revealed


def _report(
    session: Session[Denoiser],
    canvas: Canvas,
    rows: Tensor,
    low: int,
    numbers: Iterator[int],
    step: Step,
) -> None:
    """What the caller's callback sees: the whole canvas, with what is new in its place."""
    whole, positions = rows[step.rows], step.positions + low
    canvas.write(whole, positions, step.canvas.tokens[step.rows, step.positions])
    session.report(next(numbers), None, canvas, whole, positions)
