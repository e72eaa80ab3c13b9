"""The training objective: a method's loss as a module, so that it can be distributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.contracts.loss import Loss
from partita.methods.contracts import TextMethod
from partita.methods.masked_method import MaskedMethod
from partita.randomness import Noise, Purpose


class Objective(nn.Module):
    """A method's loss as a module, since data-parallel wrappers wrap a module's forward.

    `distillation_loss` replaces the method's own loss, if it is given.
    """

    def __init__(
        self,
        method: nn.Module,
        distillation_loss: Callable[..., Loss] | None = None,
        label_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.method, self.distillation_loss = method, distillation_loss
        self.label_dropout = label_dropout

    def forward(
        self, batch: Batch, noise: Noise, step: int, bound: bool = False
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The objective to differentiate, and the nats summed over the batch's rows.

        With `bound`, nats have the weights of the likelihood bound. The objective may have terms
        besides the nats.
        """
        batch = replace(batch, label=self._labels(batch, noise, step, whole=bound))
        loss = self._loss(batch, noise, step, bound)
        return loss.objective * loss.tokens, loss.per_token.sum().detach()

    def _loss(self, batch: Batch, noise: Noise, step: int, bound: bool) -> Loss:
        method = self.method
        if bound and self.distillation_loss is None and isinstance(method, MaskedMethod):
            return method.loss(batch, noise, step, corruption=method.bound_corruption)
        loss: Loss = (self.distillation_loss or method.loss)(batch, noise, step)  # type: ignore[operator]
        return loss

    def _labels(self, batch: Batch, noise: Noise, step: int, *, whole: bool) -> Tensor | None:
        """The labels of a batch, or None if the network is not conditioned on them.

        Unless `whole`, some are replaced by the "no label" index, which follows the last class.
        """
        method = self.method
        unlabeled = method.sizes.classes if isinstance(method, TextMethod) else 0
        if batch.label is None or not unlabeled:
            return None
        if whole:
            return batch.label
        address = torch.zeros(1, 1, dtype=torch.int64, device=batch.label.device)
        hidden = noise.uniform(Purpose.LABEL, step, address)[:, 0] < self.label_dropout
        return batch.label.masked_fill(hidden, unlabeled)
