"""Samplers that let the model's confidence choose which positions are revealed.

Each step draws a candidate for every wanted hidden position and keeps the most confident ones.
Tokens that are kept stay; the other candidates are dropped. These samplers do not sample from the
model's own distribution: they reveal likely tokens first, which is why few steps are enough.

- `confidence`: a fixed number of positions per step (MaskGIT, LLaDA);
- `threshold`: every position whose confidence reaches a threshold, at least one (Fast-dLLM).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.contracts.shapes import Marks, Tokens
from partita.errors import require_number, require_temperature
from partita.methods.contracts import Denoiser
from partita.randomness import Purpose
from partita.registry import Registry
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.counts import reveal_counts
from partita.samplers.state import SamplerState

Context = SamplingContext[Denoiser]

Measure = Callable[[Tensor, Tensor], Tensor]
CONFIDENCES: Registry[Measure] = Registry("confidence")
"""Maps log-probabilities [N, V] and candidate tokens [N] to confidences [N]; higher is surer."""


@CONFIDENCES.register("probability")
def candidate_probability(
    log_probs: Float[Tensor, "N V"], tokens: Int64[Tensor, "N"]
) -> Float64[Tensor, "N"]:
    """The probability of the candidate itself."""
    return log_probs.double().gather(-1, tokens[:, None])[:, 0].exp()


@CONFIDENCES.register("margin")
def margin(log_probs: Float[Tensor, "N V"], tokens: Int64[Tensor, "N"]) -> Float64[Tensor, "N"]:  # noqa: ARG001 - the margin does not depend on the candidate
    """The probability of the best token minus that of the second best."""
    best = log_probs.double().topk(2, dim=-1).values.exp()
    return best[:, 0] - best[:, 1]


@CONFIDENCES.register("entropy")
def negative_entropy(
    log_probs: Float[Tensor, "N V"],
    tokens: Int64[Tensor, "N"],  # noqa: ARG001 - nor does the entropy
) -> Float64[Tensor, "N"]:
    """Minus the entropy of the distribution."""
    logs = log_probs.double()
    return (logs.exp() * logs.clamp(min=torch.finfo(torch.float64).min)).sum(-1)


@CONFIDENCES.register("random")
def no_confidence(
    log_probs: Float[Tensor, "N V"], tokens: Int64[Tensor, "N"]
) -> Float64[Tensor, "N"]:
    """Zero for all candidates, so that noise alone decides."""
    return torch.zeros_like(tokens, dtype=torch.float64, device=log_probs.device)


def most_confident(
    confidence: Float64[Tensor, "B L"], eligible: Marks, counts: Int64[Tensor, "B"]
) -> Marks:
    """The `counts` most confident eligible positions of each row (the leftmost among equals)."""
    keys = confidence.masked_fill(~eligible, -torch.inf)
    rank = keys.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return (rank < counts[:, None]) & eligible


def above_threshold(confidence: Float64[Tensor, "B L"], eligible: Marks, threshold: float) -> Marks:
    """The eligible positions that reach the threshold, and always the most confident one."""
    one = eligible.any(-1).long()
    return (eligible & (confidence >= threshold)) | most_confident(confidence, eligible, one)


def _candidates(
    context: Context, state: SamplerState, step: int, hidden: Tensor, measure: Measure
) -> tuple[Tensor, Tensor]:
    """A candidate and its confidence at every wanted hidden position, as [B, L] tensors.

    `hidden` is how many positions of each row were hidden at the start.
    """
    rows, positions = state.remaining.nonzero(as_tuple=True)
    visible = 1 - state.remaining.sum(-1).double() / hidden.clamp(min=1)
    log_probs = context.ask(state, rows, positions, visible)
    drawn = context.draw(log_probs, step, rows, positions)
    tokens = state.tokens.index_put((rows, positions), drawn)
    scores = torch.zeros(state.tokens.shape, dtype=torch.float64, device=tokens.device)
    return tokens, scores.index_put((rows, positions), measure(log_probs, drawn))


def _commit(
    context: Context,
    state: SamplerState,
    step: int,
    total: int | None,
    keep: Tensor,
    tokens: Tensor,
) -> None:
    rows, positions = keep.nonzero(as_tuple=True)
    state.write(rows, positions, tokens[rows, positions])
    context.report(step, total, state, rows, positions)


def gumbel(context: Context, state: SamplerState, step: int) -> Float64[Tensor, "B L"]:
    """Standard Gumbel noise for every position."""
    u = context.noise.uniforms(Purpose.CONFIDENCE, step, state.tokens.shape[1])
    # u = 0 has probability 2^-53; half of the grid's spacing keeps its logarithm finite.
    return -torch.log(-torch.log(u + 2.0**-54))


@sampler("confidence", family="masked")
def confidence(
    context: Context,
    state: SamplerState,
    *,
    steps: int = 16,
    counts: str | Sequence[int] = "cosine",
    confidence: str = "probability",
    noise_temperature: float = 0.0,
) -> Tokens:
    """Reveal a planned number of positions per step, the most confident first.

    With noise, positions are ranked by log(confidence) + temperature * (1 - i/(steps-1)) * Gumbel
    (MaskGIT): the order is more random in early steps. "random" always ranks by noise alone.
    `counts` is the name of a rule, or a list with the number of positions of each step.
    """
    require_temperature(noise_temperature, "noise_temperature")
    measure = CONFIDENCES[confidence]
    hidden = state.remaining.sum(-1)
    plan = reveal_counts(hidden, steps, counts)
    for step in range(steps):
        keep = torch.zeros_like(state.wanted)
        tokens = state.tokens
        if bool(plan[:, step].any()):
            tokens, scores = _candidates(context, state, step, hidden, measure)
            scores = _noised(context, state, scores, step, steps, confidence, noise_temperature)
            keep = most_confident(scores, state.remaining, plan[:, step])
        _commit(context, state, step, steps, keep, tokens)
    return state.tokens


def _noised(
    context: Context,
    state: SamplerState,
    scores: Tensor,
    step: int,
    steps: int,
    confidence: str,
    temperature: float,
) -> Tensor:
    if confidence == "random":
        return gumbel(context, state, step)
    cooled = temperature * (1 - step / (steps - 1)) if steps > 1 else temperature
    if cooled == 0:
        return scores
    # Probabilities and margins are compared on the log scale; an entropy already is on it.
    logs = scores if confidence == "entropy" else torch.log(scores)
    return logs + cooled * gumbel(context, state, step)


@sampler("threshold", family="masked")
def threshold(
    context: Context,
    state: SamplerState,
    *,
    threshold: float = 0.9,
    confidence: str = "probability",
) -> Tokens:
    """Reveal every position whose confidence reaches the threshold, at least one per step."""
    require_number(threshold, "threshold", -math.inf)
    measure = CONFIDENCES[confidence]
    hidden = state.remaining.sum(-1)
    step = 0
    while bool(state.remaining.any()):
        tokens, scores = _candidates(context, state, step, hidden, measure)
        keep = above_threshold(scores, state.remaining, threshold)
        _commit(context, state, step, None, keep, tokens)
        step += 1
    return state.tokens
