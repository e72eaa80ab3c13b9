"""Sample tokens from logits in one kernel: temperature, top-k, top-p and exact inversion.

The reference (`categorical.py`) stores float64 probabilities of the whole vocabulary, their sorted
copy and their cumulative sum. Here a program reads one row's logits a few times from the cache and
writes one token. Exponentials are in float32, all sums in float64, and the distribution is the
same: the first token whose cumulative probability exceeds u. Draws within rounding of a boundary
may differ.

The threshold of top-k and top-p is the largest value v such that enough tokens, or enough mass, are
at v or above. It is found by bisection over the bit patterns of float32, which rise with the value.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

BLOCK = 8192  # tokens at a time; rows are few, so many threads must read each
LEAST = 128  # size of the smallest block
ONE = 0x3F800000  # the bits of 1.0, the largest weight


@triton.jit
@no_type_check
def _weights(row, start, size, forbidden, top, inverse_temperature, block: tl.constexpr):
    """exp((logit - top) / temperature) of a block of tokens; 0 for `forbidden` and padding."""
    tokens = start + tl.arange(0, block)
    real = (tokens < size) & (tokens != forbidden)
    logits = tl.load(row + tokens, mask=real, other=-float("inf")).to(tl.float32)
    return tl.exp((logits - top) * inverse_temperature)


@triton.jit
@no_type_check
def _above(row, size, forbidden, top, inverse_temperature, cut, block: tl.constexpr):
    """How many weights are at least `cut`, and their sum."""
    count = tl.zeros((), tl.int32)
    mass = tl.zeros((), tl.float64)
    for start in range(0, size, block):
        weights = _weights(row, start, size, forbidden, top, inverse_temperature, block)
        kept = weights >= cut
        count += tl.sum(kept.to(tl.int32), 0)
        mass += tl.sum(tl.where(kept, weights, 0.0).to(tl.float64), 0)
    return count, mass


@triton.jit
@no_type_check
def _draw_kernel(
    logits,
    uniforms,
    tokens,
    broken,
    stride,
    size,
    forbidden,
    inverse_temperature,
    top_k,
    top_p,
    greedy: tl.constexpr,
    by_count: tl.constexpr,
    by_mass: tl.constexpr,
    block: tl.constexpr,
    one: tl.constexpr,
):
    number = tl.program_id(0)
    row = logits + number.to(tl.int64) * stride
    top = tl.full((), -float("inf"), tl.float32)
    best = tl.zeros((), tl.int32)
    nan = tl.zeros((), tl.int32)
    for start in range(0, size, block):
        at = start + tl.arange(0, block)
        real = (at < size) & (at != forbidden)
        values = tl.load(row + at, mask=real, other=-float("inf")).to(tl.float32)
        nan += tl.sum((values != values).to(tl.int32), 0)
        peak = tl.max(values, 0)
        if peak > top:
            best = start + tl.argmax(values, 0)
            top = peak
    fine = (nan == 0) & (top > -float("inf")) & (top < float("inf"))
    tl.store(broken + number, (fine == 0).to(tl.int8))
    drawn = best
    if fine & (not greedy):
        cut = tl.zeros((), tl.float32)
        if by_count:
            low, high = tl.zeros((), tl.int32), tl.full((), one, tl.int32)
            while low < high:
                middle = low + (high - low + 1) // 2
                value = middle.to(tl.float32, bitcast=True)
                count, _mass = _above(row, size, forbidden, top, inverse_temperature, value, block)
                if count >= top_k:
                    low = middle
                else:
                    high = middle - 1
            cut = low.to(tl.float32, bitcast=True)
        if by_mass:
            _all, whole = _above(row, size, forbidden, top, inverse_temperature, cut, block)
            low, high = cut.to(tl.int32, bitcast=True), tl.full((), one, tl.int32)
            while low < high:
                middle = low + (high - low + 1) // 2
                value = middle.to(tl.float32, bitcast=True)
                _few, mass = _above(row, size, forbidden, top, inverse_temperature, value, block)
                if mass >= top_p * whole:
                    low = middle
                else:
                    high = middle - 1
            cut = low.to(tl.float32, bitcast=True)
        _kept, total = _above(row, size, forbidden, top, inverse_temperature, cut, block)
        target = tl.load(uniforms + number) * total
        before = tl.zeros((), tl.float64)
        found = tl.zeros((), tl.int32)
        for start in range(0, size, block):
            if found == 0:
                weights = _weights(row, start, size, forbidden, top, inverse_temperature, block)
                weights = tl.where(weights >= cut, weights, 0.0).to(tl.float64)
                sum_here = tl.sum(weights, 0)
                if before + sum_here > target:
                    passed = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
                    at = tl.where(passed, start + tl.arange(0, block), size)
                    first = tl.min(at, 0)
                    # The scan may round to less than the sum; then take the block's last token.
                    last = tl.max(tl.where(weights > 0, start + tl.arange(0, block), 0), 0)
                    drawn = tl.where(first < size, first, last)
                    found += 1
                before += sum_here
    tl.store(tokens + number, drawn.to(tl.int64))


def draw_tokens(
    logits: Float[Tensor, "N V"],
    u: Float64[Tensor, "N"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    forbidden: int = -1,
) -> tuple[Int64[Tensor, "N"], Bool[Tensor, "N"]]:
    """One token per row for u in [0, 1), and which rows are invalid (NaN, or no possible token).

    `forbidden` is an id that is never drawn, such as the mask.
    """
    count, size = logits.shape
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    broken = torch.empty(count, dtype=torch.int8, device=logits.device)
    greedy = temperature == 0
    if count:
        _draw_kernel[(count,)](
            logits,
            u,
            tokens,
            broken,
            logits.stride(0),
            size,
            forbidden,
            1.0 if greedy else 1.0 / temperature,
            top_k or 0,
            1.0 if top_p is None else top_p,
            greedy=greedy,
            by_count=top_k is not None and top_k < size,
            by_mass=top_p is not None and top_p < 1,
            block=min(BLOCK, max(LEAST, triton.next_power_of_2(size))),
            one=ONE,
            num_warps=16 if size > BLOCK // 2 else 4,
        )
    return tokens, broken.bool()
