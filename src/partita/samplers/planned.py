"""Planned samplers: they fix when each position is revealed before they call the model.

Under the absorbing process every hidden token has a jump time tau with P(tau <= t) = 1 - alpha_t,
independent of its value (MD4, "masked diffusion as any-order autoregression"). Drawing the jump
times first, one uniform per position, makes all of these one loop:

- `ancestral`: positions whose jump times fall into the same interval of the grid are revealed
  together. It is the usual reverse process: a token that is hidden at t becomes visible by s with
  probability (alpha_s - alpha_t) / (1 - alpha_t), independently of the others.
- `first_hitting`: one position after the other, in the order of the jump times: the reverse
  process without discretization error (Zheng et al., 2024).
- `ordered`: a given order and a fixed number per step (PGM's sampler takes a random order).

Only the positions of a step are queried, and a step without positions costs no network call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from partita.contracts.shapes import Tokens
from partita.errors import InputError, require
from partita.methods.contracts import Denoiser
from partita.randomness import Noise, Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.counts import even_counts
from partita.samplers.state import SamplerState
from partita.schedules import Schedule, make_schedule, sampling_grid

Context = SamplingContext[Denoiser]

ORDERS = ("left-to-right", "random")  # "strided" depends on the number of steps
NEVER = -1  # plan entry of a position that is not to be filled
Order = str | Sequence[int] | Int64[Tensor, "L"]
"""A name ("random", "left-to-right", "strided"), or the positions in their order of reveal."""


def reveal_as_planned(
    context: Context,
    state: SamplerState,
    plan: Int64[Tensor, "B L"],
    visible: Float64[Tensor, "B L"],
    steps: int,
) -> Int64[Tensor, "B L"]:
    """Reveal every position at the step that the plan gives for it.

    `visible` is alpha, the share of revealed tokens, at which each position is queried.
    """
    if context.executor is not None and context.executor.takes(context, steps):
        return context.executor.reveal(context, state, plan, visible, steps)
    rows, positions = (plan != NEVER).nonzero(as_tuple=True)
    order = plan[rows, positions].argsort(stable=True)
    rows, positions = rows[order], positions[order]
    sizes = torch.bincount(plan[rows, positions], minlength=steps).tolist()
    groups = zip(torch.split(rows, sizes), torch.split(positions, sizes), strict=True)
    for step, (step_rows, step_positions) in enumerate(groups):
        if step_rows.numel():
            share = visible.new_zeros(state.batch)
            share[step_rows] = visible[step_rows, step_positions]
            log_probs = context.ask(state, step_rows, step_positions, share)
            # A position is drawn once, so its noise is addressed by position alone: runs with
            # different numbers of steps then share their noise.
            tokens = context.draw(log_probs, 0, step_rows, step_positions)
            state.write(step_rows, step_positions, tokens)
        context.report(step, steps, state, step_rows, step_positions)
    return state.tokens


def visible_fraction_at_jump(noise: Noise, state: SamplerState) -> Float64[Tensor, "B L"]:
    """alpha(tau) at the jump time tau of every position: uniform on [0, 1)."""
    return noise.uniforms(Purpose.ORDER, 0, state.tokens.shape[1])


@sampler("ancestral", family="masked", planned=True, default=True)
def ancestral(
    context: Context,
    state: SamplerState,
    *,
    steps: int = 128,
    schedule: str | Schedule | None = None,
    grid: str = "uniform",
) -> Tokens:
    """The reverse process on a grid of times, by default under the model's own schedule."""
    chosen = context.model.schedule if schedule is None else make_schedule(schedule)
    # alpha rises along the grid. A jump at alpha(tau) = u falls into the step whose interval
    # [alpha(t_i), alpha(t_{i+1})) holds u; values outside a truncated schedule, into its ends.
    visible = chosen.alpha(sampling_grid(grid, steps).to(state.tokens.device))
    u = visible_fraction_at_jump(context.noise, state)
    step = torch.searchsorted(visible, u, right=True).clamp(1, steps) - 1
    plan = torch.where(state.remaining, step, NEVER)
    return reveal_as_planned(context, state, plan, visible[step], steps)


@sampler("first-hitting", family="masked", planned=True)
def first_hitting(context: Context, state: SamplerState) -> Tokens:
    """The reverse process in continuous time: one position per network call.

    alpha at a jump is uniform under every schedule, so the schedule does not matter.
    """
    u = visible_fraction_at_jump(context.noise, state)
    plan = _ranks(u, state)
    return reveal_as_planned(context, state, plan, u, int(plan.max()) + 1)


@sampler("ordered", family="masked", planned=True)
def ordered(
    context: Context, state: SamplerState, *, steps: int | None = None, order: Order = "random"
) -> Tokens:
    """Reveal positions in a given order, split evenly over the steps (default: one per step).

    `order` is "random" (one per sample), "left-to-right", "strided", or a list of all positions in
    the order in which they are revealed. "strided" with S steps reveals every S-th position: step i
    the i-th of each stretch of S, so that neighbors are drawn in different steps. With one
    position per step it is left to right.
    """
    hidden = state.remaining.sum(-1)
    steps = max(1, int(hidden.max())) if steps is None else steps
    counts = even_counts(hidden, steps)
    return reveal_in_order(context, state, _order_keys(context.noise, state, order, steps), counts)


def order_ranks(noise: Noise, state: SamplerState, order: Order) -> Int64[Tensor, "B L"]:
    """The rank of every position in the order in which `ordered` reveals them one at a time."""
    return _ranks(_order_keys(noise, state, order, state.tokens.shape[1]), state)


def reveal_in_order(
    context: Context,
    state: SamplerState,
    keys: Shaped[Tensor, "B L"],
    counts: Int64[Tensor, "B steps"],
) -> Int64[Tensor, "B L"]:
    """Reveal positions in the order of their keys, `counts` of them at each step.

    The smallest key comes first, and the leftmost of equal ones. The counts of a row sum to the
    number of its hidden positions: what they leave over is revealed in the last step.
    """
    ranks, hidden, steps = _ranks(keys, state), state.remaining.sum(-1), counts.shape[1]
    ends = counts.cumsum(-1)
    step = torch.searchsorted(ends, ranks.clamp(min=0), right=True).clamp(max=steps - 1)
    plan = torch.where(state.remaining, step, NEVER)
    visible = (ends - counts).double() / hidden.clamp(min=1)[:, None]
    return reveal_as_planned(context, state, plan, visible.gather(1, step), steps)


def _ranks(keys: Tensor, state: SamplerState) -> Tensor:
    """The rank of every remaining position in the order of the keys; NEVER elsewhere."""
    keys = keys.double().masked_fill(~state.remaining, torch.inf)
    ranks = keys.argsort(dim=-1, stable=True).argsort(-1)
    return torch.where(state.remaining, ranks, NEVER)


def _order_keys(noise: Noise, state: SamplerState, order: Order, steps: int) -> Tensor:
    length, device = state.tokens.shape[1], state.tokens.device
    if not isinstance(order, str):
        problem = f"must name each of the {length} positions once"
        try:
            positions = torch.as_tensor(order)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError("order", f"{problem}, got {order!r}") from error
        whole = torch.equal(positions.sort().values.cpu(), torch.arange(length))
        require(whole, "order", problem)
        return positions.argsort().to(device).expand_as(state.tokens)
    if order == "left-to-right":
        return torch.arange(length, device=device).expand_as(state.tokens)
    if order == "strided":
        rank = state.remaining.cumsum(-1) - 1  # known positions do not count
        return rank % steps * length + rank // steps
    if order == "random":
        return visible_fraction_at_jump(noise, state)
    raise InputError(
        "order",
        f"unknown name {order!r}",
        f"known: {', '.join(ORDERS)}, strided, or a list of positions",
    )
