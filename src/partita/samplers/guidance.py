"""Classifier-free guidance: a wrapper that changes predictions, for any sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.errors import InputError, require
from partita.schedules import Schedule

if TYPE_CHECKING:
    from partita.methods.masked_method import MaskedMethod


def guide(
    conditional: Float[Tensor, "*n V"], unconditional: Float[Tensor, "*n V"], weight: float
) -> Float[Tensor, "*n V"]:
    """(1 + w) log p(x | c) - w log p(x | nothing), normalised; impossible tokens stay so."""
    mixed = (1 + weight) * conditional - weight * unconditional
    return mixed.masked_fill(conditional == -torch.inf, -torch.inf).log_softmax(-1)


@dataclass(frozen=True)
class Guided:
    """A labelled model under guidance. Both predictions come from one batched pass."""

    model: MaskedMethod
    weight: float

    def __post_init__(self) -> None:
        classes = getattr(getattr(self.model, "network", None), "config", None)
        require(
            getattr(self.model, "family", None) == "masked" and getattr(classes, "classes", 0) > 0,
            "model",
            "guidance needs a masked model with class labels",
            "build its network with TransformerConfig(classes=...)",
        )

    @property
    def family(self) -> str:
        return self.model.family

    @property
    def length(self) -> int:
        return self.model.length

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def mask_id(self) -> int:
        return self.model.mask_id

    @property
    def timed(self) -> bool:
        return self.model.timed

    @property
    def schedule(self) -> Schedule:
        return self.model.schedule

    def predict(
        self,
        tokens: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        time: Float[Tensor, "B"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "N V"]:
        if label is None:
            raise InputError("label", "guidance pulls towards a class label, and none was given")
        batch = tokens.shape[0]
        no_label = torch.full_like(label, self.model.network.config.classes)
        both = self.model.predict(
            torch.cat([tokens, tokens]),
            torch.cat([revealed, revealed]),
            torch.cat([rows, rows + batch]),
            torch.cat([positions, positions]),
            None if time is None else torch.cat([time, time]),
            torch.cat([label, no_label]),
        )
        conditional, unconditional = both.chunk(2)
        return guide(conditional, unconditional, self.weight)
