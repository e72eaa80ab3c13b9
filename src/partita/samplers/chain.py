"""The reverse process of models that bring a step of their own (D3PM, GenMD4).

The state starts as noise and is drawn anew at every step: z_s from p(z_s | z_t), where the model
predicts the clean tokens and its process makes the step of that. Known tokens are put back after
every step. Temperature, top-k and top-p act on the prediction of the clean tokens.
"""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.categorical import decoded, sample_categorical
from partita.methods.contracts import Chain
from partita.randomness import Purpose
from partita.samplers.base import Session, sampler
from partita.samplers.canvas import Canvas
from partita.schedules import sampling_grid


@sampler("reverse", family="chain", default=True)
def reverse(
    session: Session[Chain], canvas: Canvas, *, steps: int = 128, grid: str = "uniform"
) -> Int64[Tensor, "B L"]:
    """p(z_s | z_t) along a grid of times; a chain of T steps takes no more than those."""
    steps = min(steps, session.model.steps or steps)
    times = sampling_grid(grid, steps).to(canvas.tokens.device)
    state = _draw(session, session.model.prior(canvas.tokens).log(), 0, canvas)
    for index, (t, s) in enumerate(itertools.pairwise(times)):
        before, after = t.expand(canvas.batch), s.expand(canvas.batch)
        with torch.no_grad():
            predicted = session.model.log_mean(state, before, session.label)
            predicted = decoded(predicted, session.decoding)
            log_probs = session.model.step(predicted, state, after, before).log()
        state = _draw(session, log_probs, index + 1, canvas)
        _report(session, canvas, state, index, steps)
    canvas.tokens[canvas.wanted] = state[canvas.wanted]
    canvas.revealed |= canvas.wanted
    return canvas.tokens


def _draw(
    session: Session[Chain], log_probs: Float[Tensor, "B L S"], step: int, canvas: Canvas
) -> Int64[Tensor, "B L"]:
    """A state for every position; known tokens stay."""
    rows, positions = torch.ones_like(canvas.wanted).nonzero(as_tuple=True)
    u = session.noise.uniform_at(Purpose.TOKEN, step, rows, positions)
    drawn = sample_categorical(log_probs.flatten(0, 1), u).view(canvas.tokens.shape)
    return torch.where(canvas.revealed, canvas.tokens, drawn)


def _report(session: Session[Chain], canvas: Canvas, state: Tensor, index: int, steps: int) -> None:
    """The callback sees the state that the chain is in; at the end all of it is revealed."""
    if session.callback is None:
        return
    last = index + 1 == steps
    revealed = canvas.revealed | (canvas.wanted & last)
    shown = Canvas(state.clone(), revealed, canvas.wanted, settled=False)
    rows, positions = (canvas.wanted & last).nonzero(as_tuple=True)
    session.report(index, steps, shown, rows, positions)
