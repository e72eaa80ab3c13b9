"""Model FLOPs utilization (MFU): the fraction of the device's peak that training reaches."""

from __future__ import annotations

import torch
from torch import nn

from partita.methods.contracts import TextMethod
from partita.networks.base import AnyNetwork

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


def network_of(method: nn.Module) -> AnyNetwork:
    """A method's network, or a default `AnyNetwork` if it is of another class."""
    network = getattr(method, "network", None)
    return network if isinstance(network, AnyNetwork) else AnyNetwork()


def flops_per_token(method: nn.Module, length: int) -> float:
    """FLOPs per token, forward and backward: 6 per matrix weight, plus attention's two products.

    A method may run its network several times over every token. Several tokens may share a
    position of the network (a pixel, a patch) and its computation.
    """
    network = network_of(method)
    weights = (p for name, p in method.named_parameters() if p.ndim >= 2 and "embed" not in name)
    positions = length / network.tokens_each
    once = 6.0 * sum(p.numel() for p in weights) + 12.0 * positions * network.attended_width
    return once / network.tokens_each * (method.passes if isinstance(method, TextMethod) else 1)


def peak_flops(device: torch.device) -> float | None:
    """The device's dense bfloat16 peak; None if it is unknown (and for CPUs)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)
