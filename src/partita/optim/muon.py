"""Muon that updates all matrices of one shape together, in batched products.

Muon orthogonalizes the momentum of every matrix by five Newton-Schulz iterations of three products.
Done one matrix at a time, a network of modest size spends its time on kernel launches. Blocks are
alike, so there are only a few shapes: stacked, a step costs some dozens of launches, however deep
the network is.

A joint projection to queries, keys and values is three matrices: such parts are orthogonalized one
by one, as if they were three layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.parallel import like, whole


class StackedMuon(torch.optim.Muon):
    """Muon with updates of AdamW's typical size; options and state are those of torch's Muon.

    For sharded weights, each process gathers the whole momentum and keeps its shard of the update.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        lr: float,
        weight_decay: float,
        parts: Mapping[nn.Parameter, int] | None = None,
    ) -> None:
        """`parts`: how many matrices, one below the other, a parameter consists of."""
        # An orthogonal matrix has entries of size 1/sqrt(its longer side); AdamW's are about 0.2.
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self._parts = parts or {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - as torch's
        """One step, shape by shape."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            having = [p for p in group["params"] if p.grad is not None]
            having.sort(key=self._kind)
            for (rows, columns, *_), alike in groupby(having, self._kind):
                self._update([*alike], rows, columns, group)
        return loss

    def _kind(self, matrix: nn.Parameter) -> tuple[Any, ...]:
        """The key by which matrices are stacked: the shape of their parts, and other properties."""
        rows, columns = matrix.shape
        apart = self._parts.get(matrix, 1)
        return rows // apart, columns, apart, str(matrix.dtype), str(matrix.device)

    def _update(
        self, matrices: list[Tensor], rows: int, columns: int, group: dict[str, Any]
    ) -> None:
        slopes = [p.grad for p in matrices if p.grad is not None]
        for matrix, slope in zip(matrices, slopes, strict=True):
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(slope)
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(momenta, slopes, 1 - group["momentum"])
        nesterov, momentum = group["nesterov"], group["momentum"]
        ahead = torch._foreach_lerp(slopes, momenta, momentum) if nesterov else momenta
        stack = torch.stack([whole(x) for x in ahead])
        how = group["ns_coefficients"], group["ns_steps"], group["eps"]
        updates = orthogonalised(stack.view(-1, rows, columns), *how)
        whole_updates = updates.to(stack.dtype).reshape(stack.shape)
        shares = [like(x, matrix) for x, matrix in zip(whole_updates, matrices, strict=True)]
        scale = 0.2 * max(rows, columns) ** 0.5
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, shares, alpha=-group["lr"] * scale)


def orthogonalised(
    matrices: Float[Tensor, "N R C"],
    coefficients: tuple[float, float, float],
    iterations: int,
    eps: float,
) -> Float[Tensor, "N R C"]:
    """Singular values brought near 1, in bfloat16: x <- a x + (b A + c A^2) x with A = x x^T."""
    a, b, c = coefficients
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16().mT if tall else matrices.bfloat16()
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
