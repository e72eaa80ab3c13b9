"""Philox random numbers as uniforms in one kernel; in torch it takes about two hundred."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float64, Int64
from torch import Tensor

from partita.kernels.philox import MULTIPLIERS, ROUNDS, WEYL

BLOCK = 1024


@triton.jit(do_not_specialize=["step"])  # it changes with every step of a run
@no_type_check
def _uniform_kernel(
    positions,
    samples,
    uniforms,
    since,
    count,
    step,
    purpose,
    key_a,
    key_b,
    multiplier_a: tl.constexpr,
    multiplier_b: tl.constexpr,
    weyl_a: tl.constexpr,
    weyl_b: tl.constexpr,
    rounds: tl.constexpr,
    counted: tl.constexpr,
    block: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = at < count
    a = tl.load(positions + at, mask=valid, other=0).to(tl.uint32)
    c = tl.load(samples + at, mask=valid, other=0).to(tl.uint32)
    b = tl.full((block,), step, tl.int64)
    if counted:
        b += tl.load(since)
    b = b.to(tl.uint32)
    d = tl.full((block,), purpose, tl.int64).to(tl.uint32)
    first = tl.full((block,), key_a, tl.int64).to(tl.uint32)
    second = tl.full((block,), key_b, tl.int64).to(tl.uint32)
    one = tl.full((block,), multiplier_a, tl.uint32)
    two = tl.full((block,), multiplier_b, tl.uint32)
    for _ in tl.static_range(rounds):
        high_a, low_a = tl.umulhi(a, one), a * one
        high_c, low_c = tl.umulhi(c, two), c * two
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
        first = first + tl.full((block,), weyl_a, tl.uint32)
        second = second + tl.full((block,), weyl_b, tl.uint32)
    bits = (a.to(tl.int64) << 21) | (b.to(tl.int64) >> 11)
    tl.store(uniforms + at, bits.to(tl.float64) * 1.1102230246251565e-16, mask=valid)  # 2^-53


def philox_uniforms(
    positions: Int64[Tensor, "*n"],
    samples: Int64[Tensor, "*n"],
    step: int,
    purpose: int,
    key: tuple[int, int],
    since: Int64[Tensor, ""] | None = None,
) -> Float64[Tensor, "*n"]:
    """53-bit uniforms at the given addresses, of which the low 32 bits are used.

    The step is relative to `since`, a number in the GPU's memory.
    """
    found = torch.empty(positions.shape, dtype=torch.float64, device=positions.device)
    count = found.numel()
    if count:
        counted = since is not None
        flat = positions.contiguous(), samples.contiguous(), found, since if counted else found
        grid, constants = (triton.cdiv(count, BLOCK),), (*MULTIPLIERS, *WEYL, ROUNDS)
        numbers = count, step, purpose, *key
        _uniform_kernel[grid](*flat, *numbers, *constants, counted, block=BLOCK)
    return found
