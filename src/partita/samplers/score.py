"""The reverse process of score models (SEDD), by two rules (Lou et al., 2023, section 4).

- `tau-leaping` holds the reverse rates fixed during a step (Euler): p(z_s = y | z_t = x) is
  delta(x, y) + (t - s) sigma'(t) Q(x, y) s(x)_y, independently at every position.
- `analytic` removes the step's noise exactly (Tweedie, theorem 4.2): with the true score, the step
  is the true posterior of a position; under the absorbing chain it is MD4's ancestral step.

The last step of both goes from the last time before 0 to clean data: it removes all remaining
noise and leaves no mask. Samples start from the chain's stationary distribution: masks, or uniform
tokens. So does the bound of `methods/sedd.py`, which is that of the limit of short steps; where
sigma(0) > 0, it guesses the tokens that are left at t = 0 without the network.

Euler's probabilities are negative where a step is too long for its rates; the analytic ones can be
negative where the scores are those of no distribution. Negative entries are set to 0 and the rest
is scaled to sum to 1.

Known tokens stay. Temperature, top-k and top-p act on where a position jumps to, not on whether it
jumps: most positions stay in a short step, so at temperature 0 none would ever move.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.categorical import PLAIN, Decoding, sample_categorical, weights
from partita.contracts.shapes import Marks, Tokens
from partita.methods.contracts import ScoreModel
from partita.processes.ctmc import noise_rate, total_noise
from partita.randomness import Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.state import SamplerState
from partita.schedules import sampling_grid

Context = SamplingContext[ScoreModel]
Vectors = Float[Tensor, "N S"]
"""One number for every state, at each position that can move."""
Time = Float[Tensor, ""]

AT_ONCE = 1 << 22  # entries of each float64 tensor that a step holds: 32 MiB

Rule = Callable[[ScoreModel, Tensor, Tensor, Tensor, Tensor], Tensor]


def euler_step(
    model: ScoreModel, score: Vectors, x: Int64[Tensor, "N"], t: Time, s: Time
) -> Vectors:
    """p(z_s | z_t = x) with the rates of time t; entries may be negative."""
    size = (t - s) * noise_rate(model.schedule, t)
    return model.graph.euler(score, x, size.expand(x.shape))


def analytic_step(
    model: ScoreModel, score: Vectors, x: Int64[Tensor, "N"], t: Time, s: Time
) -> Vectors:
    """p(z_s | z_t = x) by removing the noise sigma(t) - sigma(s); entries may be negative."""
    dsigma = total_noise(model.schedule, t) - total_noise(model.schedule, s)
    return model.graph.analytic(score, x, dsigma.expand(x.shape))


def denoising_step(model: ScoreModel, score: Vectors, x: Int64[Tensor, "N"], t: Time) -> Vectors:
    """p(x_0 | z_t = x) by removing all noise; states that are not tokens get probability 0."""
    step = model.graph.analytic(score, x, total_noise(model.schedule, t).expand(x.shape))
    step[..., model.graph.tokens :] = 0.0
    return step


def as_probabilities(step: Vectors) -> Vectors:
    """Set negative entries to 0 and scale the rest to sum to 1."""
    step = step.clamp(min=0)
    return step / step.sum(-1, keepdim=True)


@sampler("tau-leaping", family="score")
def tau_leaping(
    context: Context, state: SamplerState, *, steps: int = 128, grid: str = "uniform"
) -> Tokens:
    """Euler steps along a grid of times, and a denoising step at its end."""
    return _reverse(context, state, steps, grid, euler_step)


@sampler("analytic", family="score", default=True)
def analytic(
    context: Context, state: SamplerState, *, steps: int = 128, grid: str = "uniform"
) -> Tokens:
    """Analytic steps along a grid of times; the last of them is the denoising step."""
    return _reverse(context, state, steps, grid, analytic_step)


def _reverse(context: Context, state: SamplerState, steps: int, grid: str, rule: Rule) -> Tensor:
    model, times = context.model, sampling_grid(grid, steps).to(state.tokens.device)
    z = _start(context, state)
    before = _settled(model, state, z)
    for index, (t, s) in enumerate(itertools.pairwise(times)):
        last = index + 1 == steps
        rows, positions = (state.wanted & model.graph.moving(z)).nonzero(as_tuple=True)
        if rows.numel():
            log_score = _log_scores(context, z, t, rows, positions)
            x = z[rows, positions]
            u = context.noise.uniform_at(Purpose.TOKEN, index + 1, rows, positions)
            drawn = []
            for few in torch.split(torch.arange(len(x), device=x.device), _at_once(log_score)):
                score, held = log_score[few].double().exp(), x[few]
                step = (
                    denoising_step(model, score, held, t)
                    if last
                    else rule(model, score, held, t, s)
                )
                distribution = _decoded(as_probabilities(step), held, context.decoding)
                drawn.append(sample_categorical(distribution.log(), u[few]))
            z[rows, positions] = torch.cat(drawn)
        after = state.revealed | state.wanted if last else _settled(model, state, z)
        if context.callback is not None:
            stays = model.graph.mask_id is not None
            shown = SamplerState(z, after, state.wanted, settled=stays)
            context.report(index, steps, shown, *(after & ~before).nonzero(as_tuple=True))
        before = after
    state.tokens[state.wanted] = z[state.wanted]
    state.revealed |= state.wanted
    return state.tokens


def _at_once(log_score: Tensor) -> int:
    """How many positions to process at a time, which bounds the memory of float64 vectors."""
    return max(1, AT_ONCE // log_score.shape[-1])


def _start(context: Context, state: SamplerState) -> Int64[Tensor, "B L"]:
    """Known tokens, and draws from the chain's stationary distribution elsewhere."""
    z = state.tokens.clone()
    stationary = context.model.graph.stationary().to(z.device)
    rows, positions = state.wanted.nonzero(as_tuple=True)
    u = context.noise.uniform_at(Purpose.TOKEN, 0, rows, positions)
    parts = torch.split(u, _at_once(stationary))
    drawn = [sample_categorical(stationary.log().expand(len(part), -1), part) for part in parts]
    z[rows, positions] = torch.cat(drawn) if drawn else z[rows, positions]
    return z


def _log_scores(context: Context, z: Tensor, t: Tensor, rows: Tensor, positions: Tensor) -> Vectors:
    """Log-scores at the positions that can move; sequences without any are not computed."""
    active, row_of_active = torch.unique(rows, return_inverse=True)
    label = None if context.label is None else context.label[active]
    with torch.no_grad():
        return context.model.log_score(
            z[active], t.expand(len(active)), row_of_active, positions, label
        )


def _decoded(
    probabilities: Float64[Tensor, "N S"], x: Int64[Tensor, "N"], decoding: Decoding
) -> Float64[Tensor, "N S"]:
    """Apply temperature, top-k and top-p to the jump away from x; its probability stays."""
    if decoding == PLAIN:
        return probabilities
    jumps = probabilities.scatter(-1, x[:, None], 0.0)
    chance = jumps.sum(-1, keepdim=True)
    if decoding.temperature == 0:
        kept = torch.zeros_like(jumps).scatter(-1, jumps.argmax(-1, keepdim=True), 1.0)
    else:
        # A position that cannot jump has no distribution to decode: any will do, with chance 0.
        kept = weights(torch.where(chance > 0, jumps, 1.0).log(), decoding)
        kept = kept / kept.sum(-1, keepdim=True)
    stay = probabilities.gather(-1, x[:, None])
    return (chance * kept).scatter(-1, x[:, None], stay)


def _settled(model: ScoreModel, state: SamplerState, z: Tensor) -> Marks:
    """The positions that will not change: known tokens, and those that the chain cannot move."""
    return state.revealed | ~model.graph.moving(z)
