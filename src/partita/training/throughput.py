"""How close training comes to what the device can do: model FLOPs utilisation."""

from __future__ import annotations

import torch
from torch import nn

from partita.methods.contracts import TextMethod
from partita.networks.base import AnyNetwork
from partita.networks.options import TransformerOptions

# Dense bfloat16 FLOP/s by a part of the device's name, from the vendors' data sheets.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "4090": 165e12,
    "V100": 125e12,
}


def flops_per_token(method: nn.Module, network: TransformerOptions) -> float:
    """Forward and backward: 6 for each weight of a matrix product, and attention's two products.

    A method may run its network more than once over every token. Tokens may share a place of the
    network (a pixel, a patch), and what is computed there.
    """
    names = dict(method.named_parameters())
    matrices = sum(p.numel() for name, p in names.items() if p.ndim >= 2 and "embed" not in name)
    inner = next((part for part in method.children() if isinstance(part, AnyNetwork)), AnyNetwork())
    places = network.length / inner.tokens_each
    once = 6.0 * matrices + 12.0 * places * inner.attended_width(network)
    passes = method.passes if isinstance(method, TextMethod) else 1
    return once / inner.tokens_each * passes


def peak_flops(device: torch.device) -> float | None:
    """The device's dense bfloat16 peak; None if it is unknown (and for CPUs)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)
