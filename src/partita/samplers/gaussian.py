"""Reverse processes of Gaussian diffusion: DDPM's (Ho et al., 2020) and DDIM's (Song et al., 2021).

A step goes from x_t to x_s for any s < t, so a sampler may use any subsequence of the T steps:

    x_s = sqrt(abar_s) x_0 + sqrt(1 - abar_s - sigma^2) epsilon + sigma z        (DDIM eq. 12)
    sigma^2 = eta^2 (1 - abar_s) / (1 - abar_t) (1 - abar_t / abar_s)            (DDIM eq. 16)

where x_0 and epsilon are predictions that agree with x_t, and z is new noise. With eta = 1 that is
DDPM's posterior (algorithm 2, the small variance), with eta = 0 nothing is random but x_T. The
noise z of x_s is addressed by s, so the samplers of a seed share it.

`sample_ddpm` is for continuous data; the samplers "ddpm" and "ddim" are for tokens, by way of their
embeddings. For known tokens the prediction of x_0 is replaced by their embeddings, so the network
reads them with the noise that it saw in training. This does not sample the exact conditional
distribution: in early steps the noise hides most of the prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from partita.categorical import decoded, sample_categorical
from partita.contracts.shapes import Labels, Tokens
from partita.errors import (
    require,
    require_int,
    require_known,
    require_number,
    require_positive,
    require_seed,
)
from partita.methods.contracts import EmbeddingModel
from partita.methods.ddpm import DDPM, VARIANCES
from partita.moved import offer_old_names
from partita.processes.gaussian import GaussianProcess, State, Steps, gaussian, wide
from partita.randomness import Noise, Purpose
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.front import as_labels, evaluating
from partita.samplers.guidance import NO_LABEL, mix
from partita.samplers.guided_models import halves, twice
from partita.samplers.state import SamplerState

Context = SamplingContext[EmbeddingModel]

ROUNDINGS = ("softmax", "nearest")

# Steps -------------------------------------------------------------------------------------------


def visited(total: int, steps: int | Sequence[int] | None = None) -> list[int]:
    """The steps of a sampler from T down to 0: all, `steps` evenly spread ones, or a given list."""
    if steps is None:
        return list(range(total, -1, -1))
    if isinstance(steps, int):
        require_int(steps, "steps", 1, total)
        return [(total * left + steps // 2) // steps for left in range(steps, -1, -1)]
    path = sorted({*steps, 0}, reverse=True)
    inside = path[0] == total and path[-1] == 0
    require(inside, "steps", f"must begin at {total} and lie in 1..{total}, got {list(steps)}")
    return path


def step(
    process: GaussianProcess,
    x_t: State,
    x_0: State,
    s: Steps,
    t: Steps,
    noise: State,
    *,
    eta: float = 1.0,
    variance: str = "small",
) -> State:
    """Draw x_s for s < t, given a prediction of x_0.

    The "large" variance is beta_{t|s} around DDPM's mean; it is defined for DDPM only (eta = 1).
    """
    small = process.posterior_variance(s, t)
    if variance == "large":
        mean, sigma = process.posterior_mean(x_0, x_t, s, t), process.lost(s, t).sqrt()
    else:
        epsilon = process.noise_of_clean(x_t, t, x_0)
        kept = (process.variance(s) - eta**2 * small).clamp(min=0).sqrt()
        mean = wide(process.signal(s).sqrt(), x_t) * x_0 + wide(kept, x_t) * epsilon
        sigma = eta * small.sqrt()
    return mean + wide(torch.where(s > 0, sigma, 0), x_t) * noise  # the last step adds none


def descend(
    process: GaussianProcess,
    predict: Callable[[State, Steps], State],
    x: State,
    noise: Noise,
    path: list[int],
    *,
    eta: float = 1.0,
    variance: str = "small",
    repeats: int = 1,
) -> State:
    """Run the reverse process from x along a path of steps.

    With `repeats` above 1, each step is undone by the forward process and taken again, `repeats`
    times in total.
    """
    require_int(repeats, "repeats")
    require_number(eta, "eta")
    require(eta <= 1, "eta", f"must lie in [0, 1], got {eta}")
    require_known(variance, "variance", VARIANCES)
    period = process.steps + 1  # a repeated step has noise of its own
    for before, after in itertools.pairwise(path):
        t, s = (torch.full((len(x),), number, device=x.device) for number in (before, after))
        for turn in range(repeats):
            with torch.no_grad():
                x_0 = predict(x, t)
                z = gaussian(noise, Purpose.STATE, after + 2 * turn * period, x)
                x_s = step(process, x, x_0, s, t, z, eta=eta, variance=variance)
            if turn + 1 < repeats:
                address = after + (2 * turn + 1) * period
                x = process.transition(x_s, s, t, gaussian(noise, Purpose.STATE, address, x))
        x = x_s
    return x


# Continuous data ---------------------------------------------------------------------------------


def sample_ddpm(
    model: DDPM,
    shape: Sequence[int],
    count: int = 1,
    *,
    steps: int | Sequence[int] | None = None,
    eta: float = 1.0,
    variance: str | None = None,
    clip: float | None = None,
    seed: int = 0,
    first: int = 0,
    label: int | Labels | None = None,
    guidance: float = 0.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B *shape"]:
    """Draw samples of a DDPM, by default with all steps of algorithm 2.

    `steps` is a number of steps or a list of them. `eta` below 1 is DDIM, with its own variance;
    with `eta=1` the default variance is the model's. `clip` keeps predictions of x_0 in
    [-clip, clip]; use 1 for images. The samples are numbered from `first`; sample i of a seed has
    the same noise in any batch. `guidance` is the weight of classifier-free guidance; 0 is off.
    """
    problem = f"{type(model).__name__} is no DDPM"
    require(isinstance(model, DDPM), "model", problem, "use partita.sample")
    whole = isinstance(shape, Sequence) and all(isinstance(size, int) for size in shape)
    require(whole, "shape", f"must be a list of sizes, got {shape!r}", "[2] is one of points")
    require_int(count, "count")
    require_seed(seed, "seed")
    require_int(first, "first", 0)
    if clip is not None:
        require_positive(clip, "clip")
    _check_guidance(model, guidance, label)
    problem = "large variances are DDPM's, but eta below 1 is DDIM"
    require(eta == 1 or variance != "large", "variance", problem, "leave one of the two out")
    noise = Noise.for_batch(seed, count, first, device)
    labels = as_labels(label, count, noise.samples.device)
    like = torch.empty(count, *shape, device=device, dtype=dtype)

    def predict(x: Tensor, t: Tensor) -> Tensor:
        x_0 = _clean(model, x, t, labels, guidance)
        return x_0 if clip is None else x_0.clamp(-clip, clip)

    if variance is None:
        variance = model.variance if eta == 1 else "small"
    path = visited(model.process.steps, steps)
    start = gaussian(noise, Purpose.STATE, model.process.steps, like)
    with evaluating(model):
        return descend(model.process, predict, start, noise, path, eta=eta, variance=variance)


def _check_guidance(model: DDPM, weight: float, label: object) -> None:
    require_number(weight, "guidance")
    require(weight == 0 or label is not None, "label", NO_LABEL, "say which")
    problem, remedy = "the network has no class labels", "use one with `classes`, such as UNet"
    require(weight == 0 or model.classes > 0, "guidance", problem, remedy)


def _clean(model: DDPM, x: State, t: Steps, labels: Tensor | None, weight: float) -> State:
    """The prediction x_0^theta; under guidance (1 + w) x_0(c) - w x_0(nothing).

    That is Ho and Salimans' guided noise (2022, eq. 6): x_0 is affine in epsilon, with
    coefficients that sum up to the same.
    """
    if labels is None or weight == 0:
        return model.clean(x, t, labels)
    none = torch.full_like(labels, model.classes)
    both = model.clean(twice(x), twice(t), torch.cat([labels, none]))
    return mix(*halves(both), weight, laws=False)


# Tokens ------------------------------------------------------------------------------------------


@sampler("ddpm", family="gaussian", default=True)
def ddpm(
    context: Context,
    state: SamplerState,
    *,
    steps: int | None = None,
    variance: str = "small",
    rounding: str = "softmax",
    repeats: int = 1,
) -> Tokens:
    """DDPM's reverse process (algorithm 2) on embeddings, then rounding to tokens.

    `repeats` above 1 takes each step several times, as RePaint does (Lugmayr et al., 2022); samples
    then agree better with a prompt.
    """
    return _fill(context, state, steps, rounding, repeats, variance=variance)


@sampler("ddim", family="gaussian")
def ddim(
    context: Context,
    state: SamplerState,
    *,
    steps: int | None = 64,
    eta: float = 0.0,
    rounding: str = "softmax",
    repeats: int = 1,
) -> Tokens:
    """DDIM's reverse process on embeddings, then rounding to tokens; `repeats` as in "ddpm"."""
    return _fill(context, state, steps, rounding, repeats, eta=eta)


def _fill(
    context: Context,
    state: SamplerState,
    steps: int | None,
    rounding: str,
    repeats: int,
    **how: Any,
) -> Tensor:
    """Run the reverse process on embeddings until the last step before 0, then round to tokens.

    Rounding is "softmax" (a draw from p(w | x_1)) or "nearest" (the embedding nearest to x_0).
    """
    require_known(rounding, "rounding", ROUNDINGS)
    model, process = context.model, context.model.process
    path = visited(process.steps, steps)
    require_int(repeats, "repeats")
    total = (len(path) - 2) * repeats + 1
    numbers = itertools.count()
    given = torch.where(state.revealed, state.tokens, 0)
    with torch.no_grad():
        vectors = model.vectors()
    fixed = state.revealed[..., None]

    def predict(x: Tensor, t: Tensor) -> Tensor:
        log_probs = model.log_probabilities(x, t, context.label)
        _report(context, state, log_probs, next(numbers), total)
        return torch.where(fixed, vectors[given], model.clean(decoded(log_probs, context.decoding)))

    z = gaussian(context.noise, Purpose.STATE, process.steps, vectors[given])
    start = torch.full((state.batch,), process.steps, device=z.device)
    x = torch.where(fixed, process.marginal(vectors[given], start, z), z)
    x = descend(process, predict, x, context.noise, path[:-1], repeats=repeats, **how)
    with torch.no_grad():
        log_probs = model.log_probabilities(x, torch.full_like(start, path[-2]), context.label)
    rows, positions = state.wanted.nonzero(as_tuple=True)
    if rounding == "nearest":
        x_0 = model.clean(log_probs)[rows, positions]
        tokens = torch.cdist(x_0, vectors).argmin(-1)
    else:
        u = context.noise.uniform_at(Purpose.TOKEN, 0, rows, positions)
        tokens = sample_categorical(log_probs[rows, positions], u, context.decoding)
    state.write(rows, positions, tokens)
    context.report(next(numbers), total, state, rows, positions)
    return state.tokens


def _report(
    context: Context, state: SamplerState, log_probs: Tensor, index: int, total: int
) -> None:
    """Call the callback with the most probable tokens; none is revealed before the rounding."""
    if context.callback is None:
        return
    best = torch.where(state.wanted, log_probs.argmax(-1), state.tokens)
    nothing = torch.empty(0, dtype=torch.int64, device=best.device)
    shown = SamplerState(best, state.revealed, state.wanted, settled=False)
    context.report(index, total, shown, nothing, nothing)


offer_old_names(__name__)
