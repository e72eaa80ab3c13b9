"""Classifier-free guidance: a model wrapper that mixes predictions, for samplers of any family.

    log p_w(x) = (1 + w) log p(x | c) - w log p(x | nothing) + constant

w is the weight; 0 is off. Temperature, top-k, top-p and confidence apply to the guided prediction.
Both predictions come from one batched pass.

The weight may rise while an image takes shape ("linear" is MaskGIT's ramp): early tokens are then
as diverse as the model's, and late ones follow the label. In masked models it rises with the share
of tokens that are revealed, k / (L - 1) for k of L: 0 with none, 1 when one is left. This share
depends on the model's input alone, so the guided model works with any sampler, number of steps and
prompt; a ramp by the index of the step would not. Where all steps reveal equally many tokens the
two agree. Families that are conditioned on the time use 1 - t instead.

`guided_models.py` says which prediction each family mixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.contracts.shapes import Labels
from partita.errors import InputError, require, require_number
from partita.methods.contracts import Model
from partita.networks.base import NetworkConfig
from partita.registry import Registry

NO_LABEL = "guidance pulls towards a class label, and none was given"
Ramp = Callable[[Tensor], Tensor]
RAMPS: Registry[Ramp] = Registry("guidance_schedule")
"""Maps the share of revealed tokens to the share of the weight."""

RAMPS.register("constant")(torch.ones_like)
RAMPS.register("linear")(lambda revealed: revealed)
RAMPS.register("cosine")(lambda revealed: (1 - torch.cos(math.pi * revealed)) / 2)


def mix(
    conditional: Tensor, unconditional: Tensor, weight: float | Tensor, *, laws: bool = True
) -> Tensor:
    """(1 + w) log p(x | c) - w log p(x | nothing), of normalized inputs or not.

    Entries of -inf (probability 0) stay -inf. `laws=False` skips this for inputs without such
    entries (vectors, or logits of tokens that can all be drawn).
    """
    mixed = (1 + weight) * conditional - weight * unconditional
    return mixed.masked_fill(conditional == -torch.inf, -torch.inf) if laws else mixed


def guide(
    conditional: Float[Tensor, "*n V"],
    unconditional: Float[Tensor, "*n V"],
    weight: float | Float[Tensor, "*#n 1"],
) -> Float[Tensor, "*n V"]:
    """The mixture of two distributions, normalized."""
    weight = torch.as_tensor(weight, dtype=conditional.dtype, device=conditional.device)
    guided = mix(conditional, unconditional, weight).log_softmax(-1)
    return torch.where(weight == 0, conditional, guided)


M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Guided(Model, Generic[M]):
    """A labeled model under guidance; `guided` makes the subclass of the model's family."""

    model: M
    weight: float
    ramp: str | Ramp = "constant"
    """A name, or a function of the share of revealed tokens."""

    def __post_init__(self) -> None:
        check_guidable(self.model)
        require_number(self.weight, "guidance")
        _ = self.share_of_weight

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        """All other attributes are the model's, but for losses: there is none of a guided model."""
        if name == "model" or name.startswith("loss"):  # no model: a copy that is not yet filled
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def sizes(self) -> NetworkConfig:
        return self.model.sizes

    @property
    def share_of_weight(self) -> Ramp:
        """The share of the weight for a share of revealed tokens."""
        return RAMPS[self.ramp] if isinstance(self.ramp, str) else self.ramp

    def _weights(self, revealed: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """The weight of each row, by the share of its tokens that are revealed."""
        return self.weight * self.share_of_weight(revealed.clamp(0, 1))

    def _labels(self, label: Labels | None) -> Int64[Tensor, "two_B"]:
        """The labels, then as many times no label: the condition of a pass for both."""
        if label is None:
            raise InputError("label", NO_LABEL)
        return torch.cat([label, torch.full_like(label, self.sizes.classes)])


def check_guidable(model: object) -> None:
    """Refuse models that have no conditional and unconditional predictions to compare."""
    require(not isinstance(model, Guided), "guidance", "the model is guided already")
    labeled = isinstance(model, Model) and model.sizes.classes > 0
    remedy = "or build its network with TransformerConfig(classes=...)"
    problem, remedy = "the model has no class labels", f"train it with network.classes, {remedy}"
    require(labeled, "guidance", problem, remedy)
