"""Samplers that decide when each position is revealed before they look at the model.

Under the absorbing process every hidden token has a jump time tau with P(tau <= t) = 1 - alpha_t,
independent of its value (MD4, "masked diffusion as any-order autoregression"). Drawing the jump
times first, one uniform per position, makes all of these one loop:

- `ancestral`: positions whose jump times fall into the same interval of the grid are revealed
  together. It is the usual reverse process: a token that is hidden at t becomes visible by s with
  probability (alpha_s - alpha_t) / (1 - alpha_t), independently of the others.
- `first_hitting`: one position after the other, in the order of the jump times: the reverse
  process without discretisation error (Zheng et al., 2024).
- `ordered`: a given order and a fixed number per step (PGM's sampler takes a random order).

Only the positions of a step are asked for, and a step without positions costs no network call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from partita.errors import InputError, require
from partita.methods.contracts import Denoiser
from partita.randomness import Noise, Purpose
from partita.samplers.base import Session, sampler
from partita.samplers.canvas import Canvas
from partita.samplers.counts import even_counts
from partita.schedules import Schedule, make_schedule, sampling_grid

ORDERS = ("left-to-right", "random")  # "strided" depends on the number of steps
NEVER = -1  # plan entry of a position that is not to be filled
Order = str | Sequence[int] | Int64[Tensor, "L"]
"""A name ("random", "left-to-right", "strided"), or the positions as they are to be revealed."""


def reveal_as_planned(
    session: Session[Denoiser],
    canvas: Canvas,
    plan: Int64[Tensor, "B L"],
    visible: Float64[Tensor, "B L"],
    steps: int,
) -> Int64[Tensor, "B L"]:
    """Reveal every position at the step that the plan names.

    `visible` is the share of revealed tokens, alpha, at which each position is asked for.
    """
    if session.executor is not None and session.executor.takes(session, steps):
        return session.executor.reveal(session, canvas, plan, visible, steps)
    rows, positions = (plan != NEVER).nonzero(as_tuple=True)
    order = plan[rows, positions].argsort(stable=True)
    rows, positions = rows[order], positions[order]
    sizes = torch.bincount(plan[rows, positions], minlength=steps).tolist()
    groups = zip(torch.split(rows, sizes), torch.split(positions, sizes), strict=True)
    for step, (step_rows, step_positions) in enumerate(groups):
        if step_rows.numel():
            share = visible.new_zeros(canvas.batch)
            share[step_rows] = visible[step_rows, step_positions]
            log_probs = session.ask(canvas, step_rows, step_positions, share)
            # A position is decided once, so its token's noise is addressed by position alone:
            # runs with different numbers of steps then share their noise.
            tokens = session.draw(log_probs, 0, step_rows, step_positions)
            canvas.write(step_rows, step_positions, tokens)
        session.report(step, steps, canvas, step_rows, step_positions)
    return canvas.tokens


def visible_fraction_at_jump(noise: Noise, canvas: Canvas) -> Float64[Tensor, "B L"]:
    """alpha(tau) of every position's jump time, which is uniform on [0, 1)."""
    positions = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)[None]
    return noise.uniform(Purpose.ORDER, 0, positions)


@sampler("ancestral", family="masked", planned=True, default=True)
def ancestral(
    session: Session[Denoiser],
    canvas: Canvas,
    *,
    steps: int = 128,
    schedule: str | Schedule | None = None,
    grid: str = "uniform",
) -> Int64[Tensor, "B L"]:
    """The reverse process on a grid, under the model's own schedule unless another is given."""
    chosen = session.model.schedule if schedule is None else make_schedule(schedule)
    # alpha rises along the grid. A jump at alpha(tau) = u falls into the step whose interval
    # [alpha(t_i), alpha(t_{i+1})) holds u; what a truncated schedule leaves out, into the ends.
    visible = chosen.alpha(sampling_grid(grid, steps).to(canvas.tokens.device))
    u = visible_fraction_at_jump(session.noise, canvas)
    step = torch.searchsorted(visible, u, right=True).clamp(1, steps) - 1
    plan = torch.where(canvas.remaining, step, NEVER)
    return reveal_as_planned(session, canvas, plan, visible[step], steps)


@sampler("first-hitting", family="masked", planned=True)
def first_hitting(session: Session[Denoiser], canvas: Canvas) -> Int64[Tensor, "B L"]:
    """The reverse process in continuous time: one position per network call.

    alpha at a jump is uniform under every schedule, so no schedule matters.
    """
    u = visible_fraction_at_jump(session.noise, canvas)
    plan = _ranks(u, canvas)
    return reveal_as_planned(session, canvas, plan, u, int(plan.max()) + 1)


@sampler("ordered", family="masked", planned=True)
def ordered(
    session: Session[Denoiser],
    canvas: Canvas,
    *,
    steps: int | None = None,
    order: Order = "random",
) -> Int64[Tensor, "B L"]:
    """A given order, split evenly over the steps (one position per step unless told otherwise).

    `order` is "random" (each sample its own), "left-to-right", "strided", or the positions in the
    order in which they are to be revealed. Strided, S steps reveal every S-th position: the first
    of each stretch of S, then the second, and so on. One position at a time that is left to right;
    in fewer steps, neighbours are still drawn one after the other, and not together.
    """
    hidden = canvas.remaining.sum(-1)
    steps = max(1, int(hidden.max())) if steps is None else steps
    counts = even_counts(hidden, steps)
    return reveal_in_order(
        session, canvas, _order_keys(session.noise, canvas, order, steps), counts
    )


def order_ranks(noise: Noise, canvas: Canvas, order: Order) -> Int64[Tensor, "B L"]:
    """The place of every position in the order in which `ordered` reveals it, one at a time."""
    return _ranks(_order_keys(noise, canvas, order, canvas.tokens.shape[1]), canvas)


def reveal_in_order(
    session: Session[Denoiser],
    canvas: Canvas,
    keys: Shaped[Tensor, "B L"],
    counts: Int64[Tensor, "B steps"],
) -> Int64[Tensor, "B L"]:
    """Reveal positions in the order of their keys, so many at each step."""
    ranks, hidden, steps = _ranks(keys, canvas), canvas.remaining.sum(-1), counts.shape[1]
    ends = counts.cumsum(-1)
    step = torch.searchsorted(ends, ranks.clamp(min=0), right=True).clamp(max=steps - 1)
    plan = torch.where(canvas.remaining, step, NEVER)
    visible = (ends - counts).double() / hidden.clamp(min=1)[:, None]
    return reveal_as_planned(session, canvas, plan, visible.gather(1, step), steps)


def _ranks(keys: Tensor, canvas: Canvas) -> Tensor:
    """The place of every remaining position in the order of its key; NEVER elsewhere."""
    ranks = keys.double().masked_fill(~canvas.remaining, torch.inf).argsort(-1).argsort(-1)
    return torch.where(canvas.remaining, ranks, NEVER)


def _order_keys(noise: Noise, canvas: Canvas, order: Order, steps: int) -> Tensor:
    length, device = canvas.tokens.shape[1], canvas.tokens.device
    if not isinstance(order, str):
        problem = f"must name each of the {length} positions once"
        try:
            positions = torch.as_tensor(order)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError("order", f"{problem}, got {order!r}") from error
        whole = torch.equal(positions.sort().values.cpu(), torch.arange(length))
        require(whole, "order", problem)
        return positions.argsort().to(device).expand_as(canvas.tokens)
    if order == "left-to-right":
        return torch.arange(length, device=device).expand_as(canvas.tokens)
    if order == "strided":
        rank = canvas.remaining.cumsum(-1) - 1  # known positions do not count
        return rank % steps * length + rank // steps
    if order == "random":
        return visible_fraction_at_jump(noise, canvas)
    raise InputError(
        "order",
        f"unknown name {order!r}",
        f"known: {', '.join(ORDERS)}, strided, or a list of positions",
    )
