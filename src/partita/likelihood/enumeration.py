"""Exact likelihood of short sequences by enumeration, for testing bounds and samplers."""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from partita.errors import require
from partita.methods.contracts import Denoiser
from partita.samplers.front import evaluating

EXACT_LENGTH = 16  # 2^L states are queried: 65,536 at this length


def exact_log_likelihood(
    model: Denoiser, tokens: Int64[Tensor, "L"], visible: Float64[Tensor, "times"] | None = None
) -> float:
    """log p(x) under the model's sampler, by dynamic programming over sets of revealed positions.

    Without `visible`: positions are revealed one at a time in random order (first-hitting, the
    any-order model). With `visible` = (alpha(t_0) = 0, ..., alpha(t_T) = 1): the ancestral sampler
    on that grid. The model must not depend on the time; the work grows as 2^L and 3^L.
    """
    require(isinstance(tokens, Tensor), "tokens", f"must be a tensor, got {type(tokens).__name__}")
    require(tokens.ndim == 1, "tokens", f"must be one sequence, got shape {list(tokens.shape)}")
    length = tokens.numel()
    problem = f"{length} are too many to enumerate: {EXACT_LENGTH} at most"
    require(length <= EXACT_LENGTH, "tokens", problem)
    require(isinstance(model, Denoiser), "model", "must be a masked model", "use nelbo")
    require(not model.timed, "model", "its predictions depend on the time", "use a time-free model")
    if visible is not None:
        whole = float(visible[0]) == 0 and float(visible[-1]) == 1
        problem = "must run from 0 (nothing revealed) to 1 (everything) and never fall"
        require(whole and bool((visible.diff() >= 0).all()), "visible", problem)
    conditionals = _all_conditionals(model, tokens)
    if visible is None:
        return _any_order(conditionals, length)
    return _ancestral(conditionals, length, visible)


def _all_conditionals(model: Denoiser, tokens: Tensor) -> Float64[Tensor, "S L"]:
    """log p(x_l | x_S) for every set S of revealed positions (as a bit mask) and every l."""
    length = tokens.numel()
    sets = torch.arange(2**length)
    revealed = ((sets[:, None] >> torch.arange(length)) & 1).bool()
    rows, positions = (~revealed).nonzero(as_tuple=True)
    with evaluating(model), torch.no_grad():
        log_probs = model.predict(tokens.expand(2**length, -1), revealed, rows, positions)
    target = tokens[positions]
    values = torch.zeros(2**length, length, dtype=torch.float64)
    values[rows, positions] = log_probs.double().gather(-1, target[:, None])[:, 0]
    return values


def _any_order(conditionals: Tensor, length: int) -> float:
    """P(S) = sum over the last revealed l in S of P(S - l) p(x_l | x_{S-l}) / (L - |S| + 1)."""
    log_p = [-math.inf] * 2**length
    log_p[0] = 0.0
    for subset in range(1, 2**length):
        members = [l for l in range(length) if subset >> l & 1]  # noqa: E741 - the paper's index
        terms = [
            log_p[subset ^ (1 << last)] + float(conditionals[subset ^ (1 << last), last])
            for last in members
        ]
        log_p[subset] = _log_sum(terms) - math.log(length - len(members) + 1)
    return log_p[-1]


def _ancestral(conditionals: Tensor, length: int, visible: Tensor) -> float:
    """A step reveals each hidden position with r = (a_s - a_t) / (1 - a_t), all from one state."""
    full = 2**length - 1
    state = {0: 0.0}
    for alpha_t, alpha_s in itertools.pairwise(visible.tolist()):
        # Where alpha has rounded to 1 before the last time, everything is revealed already.
        reveal = (alpha_s - alpha_t) / (1 - alpha_t) if alpha_t < 1 else 1.0
        following: dict[int, list[float]] = {}
        for subset, log_p in state.items():
            hidden = [l for l in range(length) if not subset >> l & 1]  # noqa: E741
            for size in range(len(hidden) + 1):
                stay = len(hidden) - size
                chance = reveal**size * (1 - reveal) ** stay
                if chance == 0:
                    continue
                for new in itertools.combinations(hidden, size):
                    target = subset | sum(1 << l for l in new)  # noqa: E741
                    gain = sum(float(conditionals[subset, l]) for l in new)  # noqa: E741
                    following.setdefault(target, []).append(log_p + math.log(chance) + gain)
        state = {target: _log_sum(terms) for target, terms in following.items()}
    return state.get(full, -math.inf)


def _log_sum(terms: list[float]) -> float:
    return float(torch.logsumexp(torch.tensor(terms, dtype=torch.float64), 0))
