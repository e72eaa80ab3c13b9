"""Semi-autoregressive sampling: blocks from left to right, any masked sampler inside a block.

A block sees everything before it and, as far as the model's length allows, the known and still
hidden positions after it. Beyond the model's length a window slides: it ends with the block and
keeps as much of what came before as fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from partita.errors import require
from partita.methods.base import Denoiser
from partita.samplers.base import SAMPLERS, Callback, Session, Step, sampler
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
    block_length: int = 32,
    inner: str = "confidence",
    **options: Any,
) -> Int64[Tensor, "B L"]:
    """Fill blocks of `block_length` positions with the sampler `inner`; options go to it."""
    total, limit = canvas.tokens.shape[1], session.model.length
    require(
        1 <= block_length <= limit,
        "block_length",
        f"must lie between 1 and the model's length {limit}, got {block_length}",
    )
    require(inner != "blocks", "inner", "blocks cannot be filled by blocks")
    for index, start in enumerate(range(0, total, block_length)):
        end = min(start + block_length, total)
        low, high = window(end, limit, total)
        view = _view(canvas, low, high, start, end)
        if bool(view.remaining.any()):
            part = replace(
                session,
                noise=session.noise.fork(index + 1),
                callback=_translated(session, canvas, low),
            )
            SAMPLERS[inner].run(part, view, **options)
    return canvas.tokens


def _view(canvas: Canvas, low: int, high: int, start: int, end: int) -> Canvas:
    """The window as a canvas that shares memory, wanting the block alone."""
    wanted = canvas.wanted[:, low:high].clone()
    wanted[:, : start - low] = False
    wanted[:, end - low :] = False
    return Canvas(canvas.tokens[:, low:high], canvas.revealed[:, low:high], wanted)


def _translated(session: Session[Denoiser], canvas: Canvas, low: int) -> Callback:
    """A callback that sees the whole canvas."""

    def report(step: Step) -> None:
        session.report(step.index, step.total, canvas, step.rows, step.positions + low)

    return report
