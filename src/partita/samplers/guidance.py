"""Classifier-free guidance: a wrapper that changes predictions, for any sampler of the family.

    log p_w(x) = (1 + w) log p(x | c) - w log p(x | nothing) + constant

comes before everything that a sampler does to a prediction: temperature, top-k and top-p apply to
the guided one, and so does its confidence.

The weight may rise while an image takes shape ("linear" is MaskGIT's ramp): early tokens then stay
as diverse as the model is, and late ones keep to the label. It rises with the share of tokens that
are revealed, k / (L - 1) for k of L: 0 with none, 1 when one is left. That is what a prediction
can see, so the guided model is a model like any other, whatever the sampler, its number of steps
and the prompt; a ramp by the number of the step would be none of these. Where steps reveal equally
many tokens the two agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.errors import InputError, require, require_number
from partita.networks.base import Network
from partita.registry import Registry
from partita.schedules import Schedule

if TYPE_CHECKING:
    from partita.methods.masked_method import MaskedMethod

Ramp = Callable[[Tensor], Tensor]
RAMPS: Registry[Ramp] = Registry("guidance_schedule")
"""The share of revealed tokens to the share of the weight."""

RAMPS.register("constant")(torch.ones_like)
RAMPS.register("linear")(lambda revealed: revealed)
RAMPS.register("cosine")(lambda revealed: (1 - torch.cos(math.pi * revealed)) / 2)


def guide(
    conditional: Float[Tensor, "*n V"],
    unconditional: Float[Tensor, "*n V"],
    weight: float | Float[Tensor, "*n 1"],
) -> Float[Tensor, "*n V"]:
    """(1 + w) log p(x | c) - w log p(x | nothing), normalised; impossible tokens stay so."""
    weight = torch.as_tensor(weight, dtype=conditional.dtype, device=conditional.device)
    mixed = (1 + weight) * conditional - weight * unconditional
    guided = mixed.masked_fill(conditional == -torch.inf, -torch.inf).log_softmax(-1)
    return torch.where(weight == 0, conditional, guided)


def check_guidable(model: object) -> None:
    """Refuse models that have no conditional and unconditional predictions to compare."""
    family = getattr(model, "family", None)
    require(
        family == "masked",
        "guidance",
        f"a {family} model cannot be guided",
        "guidance compares predictions of hidden tokens: use a masked model",
    )
    require(not isinstance(model, Guided), "guidance", "the model is guided already")
    config = getattr(getattr(model, "network", None), "config", None)
    require(
        getattr(config, "classes", 0) > 0,
        "guidance",
        "the model has no class labels",
        "build its network with TransformerConfig(classes=...)",
    )


@dataclass(frozen=True)
class Guided:
    """A labelled model under guidance. Both predictions come from one batched pass."""

    model: MaskedMethod
    weight: float
    ramp: str | Ramp = "constant"
    """A name, or a function of the share of revealed tokens."""

    def __post_init__(self) -> None:
        check_guidable(self.model)
        require_number(self.weight, "guidance")
        _ = self._share_of_weight

    @property
    def _share_of_weight(self) -> Ramp:
        return RAMPS[self.ramp] if isinstance(self.ramp, str) else self.ramp

    @property
    def network(self) -> Network:
        return self.model.network

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
        return guide(conditional, unconditional, self._weights(revealed)[rows, None])

    def _weights(self, revealed: Tensor) -> Tensor:
        """The weight of each row, by the share of its tokens that are revealed."""
        share = revealed.sum(-1).double() / max(1, revealed.shape[1] - 1)
        return self.weight * self._share_of_weight(share.clamp(max=1))
