"""The reverse process of models that define their own step (D3PM, GenMD4).

z_T is noise, and every step draws all tokens anew, z_s from p(z_s | z_t): the model predicts the
clean tokens, and its process turns the prediction into p(z_s | z_t). Known tokens are put back
after every step. Temperature, top-k and top-p act on the prediction of the clean tokens.
"""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.categorical import decoded, sample_categorical
from partita.contracts.shapes import Tokens
from partita.methods.contracts import Chain
from partita.randomness import Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.state import SamplerState
from partita.schedules import sampling_grid

Context = SamplingContext[Chain]


@sampler("reverse", family="chain", default=True)
def reverse(
    context: Context, state: SamplerState, *, steps: int = 128, grid: str = "uniform"
) -> Tokens:
    """Draw from p(z_s | z_t) along a grid of times, in at most the T steps of a discrete chain."""
    steps = min(steps, context.model.steps or steps)
    times = sampling_grid(grid, steps).to(state.tokens.device)
    z = _draw(context, context.model.prior(state.tokens).log(), 0, state)
    for index, (t, s) in enumerate(itertools.pairwise(times)):
        before, after = t.expand(state.batch), s.expand(state.batch)
        with torch.no_grad():
            predicted = context.model.log_mean(z, before, context.label)
            predicted = decoded(predicted, context.decoding)
            log_probs = context.model.step(predicted, z, after, before).log()
        z = _draw(context, log_probs, index + 1, state)
        _report(context, state, z, index, steps)
    state.tokens[state.wanted] = z[state.wanted]
    state.revealed |= state.wanted
    return state.tokens


def _draw(
    context: Context, log_probs: Float[Tensor, "B L S"], step: int, state: SamplerState
) -> Int64[Tensor, "B L"]:
    """z for every position; known tokens stay."""
    rows, positions = torch.ones_like(state.wanted).nonzero(as_tuple=True)
    u = context.noise.uniform_at(Purpose.TOKEN, step, rows, positions)
    drawn = sample_categorical(log_probs.flatten(0, 1), u).view(state.tokens.shape)
    return torch.where(state.revealed, state.tokens, drawn)


def _report(context: Context, state: SamplerState, z: Tensor, index: int, steps: int) -> None:
    """Call the callback with the current z; only the last step marks its tokens as revealed."""
    if context.callback is None:
        return
    last = index + 1 == steps
    revealed = state.revealed | (state.wanted & last)
    shown = SamplerState(z.clone(), revealed, state.wanted, settled=False)
    rows, positions = (state.wanted & last).nonzero(as_tuple=True)
    context.report(index, steps, shown, rows, positions)
