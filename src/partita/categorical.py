"""Exact categorical sampling, in one place.

A token is drawn by inversion: one 53-bit uniform against the float64 cumulative sum of the
probabilities. (Gumbel noise in low precision cuts off its tail, which quietly lowers the
temperature; published generative perplexities have moved because of it.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from partita.errors import InputError, require, require_int, require_number, require_temperature


@dataclass(frozen=True)
class Decoding:
    """How a token is drawn from its distribution: temperature first, then top-k, then top-p."""

    temperature: float = 1.0
    """Divides the logits: from 1e-30 to 1e30, or 0, which takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens (and those tied with the last of them)."""
    top_p: float | None = None
    """Keep the most probable tokens until their mass reaches p (and those tied with the last)."""

    def __post_init__(self) -> None:
        require_temperature(self.temperature, "temperature")
        if self.top_k is not None:
            require_int(self.top_k, "top_k")
        if self.top_p is not None:
            require_number(self.top_p, "top_p")
            require(0 < self.top_p <= 1, "top_p", f"must be in (0, 1], got {self.top_p}")


PLAIN = Decoding()


def kept_by_top_k(probs: Float[Tensor, "N V"], k: int) -> Bool[Tensor, "N V"]:
    """The k most probable tokens and everything tied with the last of them."""
    if k >= probs.shape[-1]:
        return torch.ones_like(probs, dtype=torch.bool)
    return probs >= probs.topk(k, dim=-1).values[:, -1:]


def kept_by_top_p(probs: Float[Tensor, "N V"], p: float) -> Bool[Tensor, "N V"]:
    """The smallest set of most probable tokens whose mass reaches p, with ties.

    A token stays if the tokens before it, in falling order, do not reach p yet. Ties with the
    last one stay as well, so the set does not depend on the order of equal tokens.
    """
    if p >= 1:
        return torch.ones_like(probs, dtype=torch.bool)
    falling = probs.sort(dim=-1, descending=True).values
    before = falling.cumsum(-1) - falling
    count = (before < p * falling.sum(-1, keepdim=True)).sum(-1, keepdim=True)
    return probs >= falling.gather(-1, count - 1)


def weights(logits: Float[Tensor, "N V"], decoding: Decoding = PLAIN) -> Float64[Tensor, "N V"]:
    """Unnormalized float64 probabilities after temperature, top-k and top-p (temperature > 0)."""
    scaled = logits.double() / decoding.temperature
    probs = torch.exp(scaled - scaled.amax(-1, keepdim=True))
    if decoding.top_k is not None:
        probs = probs * kept_by_top_k(probs, decoding.top_k)
    if decoding.top_p is not None:
        probs = probs * kept_by_top_p(probs, decoding.top_p)
    return probs


def decoded(
    log_probs: Float[Tensor, "B L V"], decoding: Decoding = PLAIN
) -> Float[Tensor, "B L V"]:
    """Log-probabilities after temperature, top-k and top-p; temperature 0 keeps the best token."""
    if decoding == PLAIN:
        return log_probs
    flat = log_probs.flatten(0, 1)
    if decoding.temperature == 0:
        best = torch.full_like(flat, -torch.inf)
        return best.scatter(-1, flat.argmax(-1, keepdim=True), 0.0).view_as(log_probs)
    kept = weights(flat, decoding)
    return (kept / kept.sum(-1, keepdim=True)).log().to(log_probs.dtype).view_as(log_probs)


def sample_categorical(
    logits: Float[Tensor, "N V"], u: Float64[Tensor, "N"], decoding: Decoding = PLAIN
) -> Int64[Tensor, "N"]:
    """One token per row: the first whose cumulative probability exceeds u, for u in [0, 1)."""
    best = logits.argmax(-1)
    _refuse_nan(logits, best)
    if decoding.temperature == 0:
        return best
    probs = weights(logits, decoding)
    cumulative = probs.cumsum(-1)
    total = cumulative[:, -1:]
    # u * total may round up to the total itself, which no token exceeds.
    target = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
    # A parallel scan may rise by a rounding error at a token of probability 0: never emit those.
    possible = probs.gather(-1, drawn[:, None])[:, 0] > 0
    return torch.where(possible, drawn, best)


def _refuse_nan(logits: Tensor, best: Tensor) -> None:
    """A NaN, +inf or all--inf row has a best entry that is not finite (argmax finds NaNs)."""
    peak = logits.gather(-1, best[:, None])[:, 0]
    if not bool(torch.isfinite(peak).all()):
        row = int((~torch.isfinite(peak)).nonzero()[0])
        raise InputError(
            "logits",
            f"row {row} holds a NaN, an infinity or no possible token",
            "the network's weights or inputs are broken",
        )
