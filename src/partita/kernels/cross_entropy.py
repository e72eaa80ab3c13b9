"""Cross-entropy of a linear head without the logits of a whole batch.

For 32 x 1,024 tokens and 50,258 ids, the logits take 6.6 GB in float32, and their gradient as much
again. Here one chunk of tokens at a time is projected and scored, and its gradient is immediately
propagated through the head: only the gradients of the hidden vectors and of the head are stored.

This needs the weight of every token in the forward pass, so only the weighted sum can be
differentiated; the nats of single tokens are returned without a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.kernels.evenness import padded

CHUNK_BYTES = 1 << 29  # memory of a chunk's logits in float32


def weighted_nats(
    hidden: Float[Tensor, "N W"],
    head: Float[Tensor, "V W"],
    bias: Float[Tensor, "V"] | None,
    targets: Int64[Tensor, "N"],
    weights: Float[Tensor, "N"],
    forbidden: int = -1,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """sum_i w_i nats_i, with gradients, and nats_i = -log softmax(head h_i + bias)[x_i].

    `forbidden` is an output that gets no mass, such as the mask's. Under autocast the matrix
    products take its dtype as input; their results and all sums are in float32 or better.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        cast = torch.get_autocast_dtype(kind)
        hidden, head = hidden.to(cast), head.to(cast)
        bias = None if bias is None else bias.to(cast)
    # `forward` itself cannot tell whether there will be a backward pass.
    wanted = torch.is_grad_enabled()
    given = hidden, head, bias, targets, weights, forbidden, wanted
    objective, nats = _WeightedNats.apply(*given)  # type: ignore[no-untyped-call]
    return objective, nats


class _WeightedNats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        forbidden: int,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        wanted = wanted and any(ctx.needs_input_grad[:3])
        size = len(head)
        head = padded(head)
        to_hidden = torch.empty_like(hidden) if wanted else None
        to_head = torch.zeros(head.shape, dtype=wide, device=head.device) if wanted else None
        to_bias = torch.zeros_like(bias, dtype=wide) if wanted and bias is not None else None
        nats = torch.empty(len(hidden), dtype=wide, device=hidden.device)
        tokens = max(1, CHUNK_BYTES // (4 * len(head)))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), tokens):
                part = slice(start, start + tokens)
                logits = _product(hidden[part], head.T, wide)
                if bias is not None:
                    logits[:, :size] += bias
                nats[part], slope = _scored(
                    logits, size, targets[part], weights[part], forbidden, hidden.dtype, wanted
                )
                if to_hidden is not None and to_head is not None and slope is not None:
                    to_hidden[part] = slope @ head
                    to_head += _product(slope.T, hidden[part], wide)
                    if to_bias is not None:
                        to_bias += slope[:, :size].sum(0, dtype=wide)
        if to_head is not None:
            ctx.save_for_backward(to_hidden, to_head[:size], to_bias)
        ctx.types = hidden.dtype, head.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(nats)
        return (nats * weights.to(wide)).sum(), nats

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        objective: Tensor,
        _: Tensor,
    ) -> tuple[Tensor | None, ...]:
        found = zip(ctx.saved_tensors, ctx.types, strict=True)
        slopes = (None if x is None else (objective * x).to(kind) for x, kind in found)
        return (*slopes, None, None, None, None)


def _product(left: Tensor, right: Tensor, wide: torch.dtype) -> Tensor:
    """A matrix product returned in the accumulation dtype `wide`, without rounding."""
    if left.is_cuda and left.dtype != wide:
        return torch.mm(left, right, out_dtype=wide)
    return (left @ right).to(wide)


def _scored(
    logits: Tensor,
    size: int,
    targets: Tensor,
    weights: Tensor,
    forbidden: int,
    narrow: torch.dtype,
    wanted: bool,
) -> tuple[Tensor, Tensor | None]:
    """Nats of the targets, and the gradient of the weighted sum by the logits: w (softmax - x).

    There are `size` outputs; columns beyond them are padding.
    """
    if logits.is_cuda and logits.dtype == torch.float32:
        from partita.kernels.scores import score_rows

        return score_rows(logits, size, targets, weights, forbidden, narrow, wanted)
    logits[:, size:] = -torch.inf
    if forbidden >= 0:
        logits[:, forbidden] = -torch.inf
    total = logits.logsumexp(-1)
    nats = total - logits.gather(-1, targets[:, None])[:, 0]
    if not wanted:
        return nats, None
    w = weights.to(logits.dtype)
    slope = (logits - total[:, None]).exp() * w[:, None]
    slope.scatter_add_(-1, targets[:, None], -w[:, None])
    return nats, slope.to(narrow)
