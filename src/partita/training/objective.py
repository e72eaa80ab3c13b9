"""What is minimised: a method's loss, as a module that can be spread over processes."""

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
    """A method's loss as a module, since distribution wraps the forward of one.

    `lesson` is a loss to learn by in place of the method's own, for example a teacher's.
    """

    def __init__(
        self,
        method: nn.Module,
        lesson: Callable[..., Loss] | None = None,
        label_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.method, self.lesson, self.label_dropout = method, lesson, label_dropout

    def forward(
        self, batch: Batch, noise: Noise, step: int, bound: bool = False
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """What is differentiated, and the nats of the batch's rows, added up.

        With `bound`, nats are weighed as a bound's. What is differentiated may have more to it.
        """
        batch = replace(batch, label=self._labels(batch, noise, step, whole=bound))
        loss = self._loss(batch, noise, step, bound)
        return loss.objective * loss.tokens, loss.per_token.sum().detach()

    def _loss(self, batch: Batch, noise: Noise, step: int, bound: bool) -> Loss:
        method = self.method
        if bound and self.lesson is None and isinstance(method, MaskedMethod):
            return method.loss(batch, noise, step, corruption=method.bound_corruption)
        loss: Loss = (self.lesson or method.loss)(batch, noise, step)  # type: ignore[operator]
        return loss

    def _labels(self, batch: Batch, noise: Noise, step: int, *, whole: bool) -> Tensor | None:
        """The labels of a batch, if the network reads any.

        Unless all are wanted, some are hidden behind the number after the last class.
        """
        method = self.method
        nobody = method.sizes.classes if isinstance(method, TextMethod) else 0
        if batch.label is None or not nobody:
            return None
        if whole:
            return batch.label
        place = torch.zeros(1, 1, dtype=torch.int64, device=batch.label.device)
        hidden = noise.uniform(Purpose.LABEL, step, place)[:, 0] < self.label_dropout
        return batch.label.masked_fill(hidden, nobody)
