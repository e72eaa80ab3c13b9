"""adaLN without a time, folded into the layers around it.

A network whose time never varies computes the same shifts, scales and gates for every input:

    norm(x) w (1 + scale) + shift     is an affine layer norm with gain w (1 + scale), bias shift
    gate * (W x + b)                  is a linear layer with rows gate * W and bias gate * b

so that the layers that made them (7 of the 170 million parameters of MDLM small) are not needed.
The result is the same function, up to one rounding: it is computed in float64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from partita.networks.layers import sinusoid

_FOLDED = ("conditioning.", "modulation_out.")
_MODULATION = re.compile(r"(.+\.)modulation\.weight")


def fold_time(weights: Mapping[str, Tensor], time: float = 0.0) -> dict[str, Tensor]:
    """The weights of a network with `norm="layer"` and time layers as those of one with
    `norm="affine"` and none, which computes what the first does at this time."""
    left = (name for name in weights if not name.startswith(_FOLDED) and ".modulation." not in name)
    folded = {name: weights[name] for name in left}
    condition = _condition(weights, time)
    for block in (found[1] for name in weights if (found := _MODULATION.fullmatch(name))):
        shifts = _linear(weights, f"{block}modulation", condition).chunk(6)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = shifts
        crossing = f"{block}norm_query.weight" in weights
        norm = f"{block}norm_query" if crossing else f"{block}norm_attention"
        _modulate(folded, norm, shift_a, scale_a)
        _gate(folded, f"{block}attention.out", gate_a)
        _modulate(folded, f"{block}norm_mlp", shift_m, scale_m)
        _gate(folded, f"{block}mlp.down", gate_m)
        if crossing:  # what is read is never modulated
            still = torch.zeros_like(shift_a)
            _modulate(folded, f"{block}norm_memory", still, still)
    _modulate(folded, "norm_out", *_linear(weights, "modulation_out", condition).chunk(2))
    return folded


def _condition(weights: Mapping[str, Tensor], time: float) -> Tensor:
    """The vector that every adaLN layer receives (`Conditioning` in float64)."""
    features = sinusoid(torch.tensor([time]))[0].double()
    hidden = F.silu(_linear(weights, "conditioning.time_in", features))
    return F.silu(_linear(weights, "conditioning.time_out", hidden))


def _linear(weights: Mapping[str, Tensor], layer: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{layer}.weight"].double(), weights[f"{layer}.bias"].double())


def _modulate(weights: dict[str, Tensor], norm: str, shift: Tensor, scale: Tensor) -> None:
    gain = weights[f"{norm}.weight"]
    weights[f"{norm}.weight"] = (gain.double() * (1 + scale)).to(gain.dtype)
    weights[f"{norm}.bias"] = shift.to(gain.dtype)


def _gate(weights: dict[str, Tensor], layer: str, gate: Tensor) -> None:
    for name, factor in ((f"{layer}.weight", gate[:, None]), (f"{layer}.bias", gate)):
        if name in weights:
            weights[name] = (weights[name].double() * factor).to(weights[name].dtype)
