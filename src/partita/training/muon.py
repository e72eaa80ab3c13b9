"""Muon with all matrices of one shape in the same few products.

Muon orthogonalises the momentum of every matrix by five Newton-Schulz iterations of three products.
One matrix after the other, a network of modest size spends its time on launching them. Blocks are
alike, so there are only a few shapes: stacked, a step costs some dozens of launches, however deep
the network is.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.training.distribution import as_shared


class StackedMuon(torch.optim.Muon):
    """torch's Muon, with updates of AdamW's typical size; its state too is torch's.

    On a CPU, and for weights that several processes share, it is torch's own step.
    """

    def __init__(self, matrices: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        # An orthogonal matrix has entries of size 1/sqrt(its longer side); AdamW's are about 0.2.
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - as torch's
        matrices = [p for group in self.param_groups for p in group["params"]]
        if any(as_shared(p) is not None or not p.is_cuda for p in matrices):
            return super().step(closure)  # type: ignore[no-untyped-call]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.step_stacked()
        return loss

    @torch.no_grad()
    def step_stacked(self) -> None:
        """One step, shape by shape."""
        for group in self.param_groups:
            having = [p for p in group["params"] if p.grad is not None]
            having.sort(key=_kind)
            for _, alike in groupby(having, _kind):
                self._update([*alike], group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        slopes = [p.grad for p in matrices if p.grad is not None]
        for matrix, slope in zip(matrices, slopes, strict=True):
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(slope)
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(momenta, slopes, 1 - group["momentum"])
        ahead = momenta
        if group["nesterov"]:
            ahead = [*torch._foreach_lerp(slopes, momenta, group["momentum"])]
        updates = orthogonalised(
            torch.stack(ahead), group["ns_coefficients"], group["ns_steps"], group["eps"]
        ).to(matrices[0].dtype)
        scale = 0.2 * max(matrices[0].shape) ** 0.5
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, [*updates], alpha=-group["lr"] * scale)


def orthogonalised(
    matrices: Float[Tensor, "N R C"],
    coefficients: tuple[float, float, float],
    iterations: int,
    eps: float,
) -> Float[Tensor, "N R C"]:
    """Singular values brought near 1, in bfloat16: x <- a x + (b A + c A^2) x with A = x x^T."""
    a, b, c = coefficients
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16()
    if tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def _kind(matrix: Tensor) -> tuple[Any, ...]:
    return (*matrix.shape, str(matrix.dtype), str(matrix.device))
