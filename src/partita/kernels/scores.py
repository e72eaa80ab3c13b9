"""Cross-entropy and its gradient for a chunk of logits, one program for each token."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

BLOCK = 4096


@triton.jit
@no_type_check
def _score_kernel(
    logits,
    targets,
    weights,
    nats,
    slope,
    stride,
    width,
    size,
    forbidden,
    wanted: tl.constexpr,
    block: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * stride
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, size, block):
        at = start + tl.arange(0, block)
        real = (at < size) & (at != forbidden)
        values = tl.load(row + at, mask=real, other=-float("inf"))
        peak = tl.maximum(top, tl.max(values, 0))
        level = tl.where(peak > -float("inf"), peak, 0.0)  # all logits so far may be -inf
        total = total * tl.exp(top - level) + tl.sum(tl.exp(values - level), 0)
        top = peak
    log_total = top + tl.log(total)
    target = tl.load(targets + number)
    possible = (target >= 0) & (target < size) & (target != forbidden)
    own = tl.load(row + target, mask=possible, other=-float("inf"))
    tl.store(nats + number, log_total - own)
    if wanted:
        weight = tl.load(weights + number)
        for start in range(0, width, block):
            at = start + tl.arange(0, block)
            real = (at < size) & (at != forbidden)
            values = tl.load(row + at, mask=real, other=-float("inf"))
            share = tl.exp(values - log_total) - (at == target).to(tl.float32)
            tl.store(slope + number * width + at, share * weight, mask=at < width)


def score_rows(
    logits: Float[Tensor, "N W"],
    size: int,
    targets: Int64[Tensor, "N"],
    weights: Float[Tensor, "N"],
    forbidden: int,
    narrow: torch.dtype,
    wanted: bool,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N W"] | None]:
    """Nats of each row's target; if `wanted`, the gradient w (softmax - target) as `narrow`.

    The first `size` columns are outputs; the gradient by the others is 0.
    """
    count, width = logits.shape
    nats = torch.empty(count, dtype=logits.dtype, device=logits.device)
    slope = torch.empty(logits.shape, dtype=narrow, device=logits.device) if wanted else None
    if count:
        _score_kernel[(count,)](
            logits,
            targets,
            weights.to(torch.float32),
            nats,
            nats if slope is None else slope,
            logits.stride(0),
            width,
            size,
            forbidden,
            wanted=wanted,
            block=BLOCK,
            num_warps=8,
        )
    return nats, slope
