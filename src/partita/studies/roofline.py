"""Roofline of a run: its least possible work, and the fraction of the device's peak it reaches.

A sampler's step reads every weight once: with one sequence, memory bandwidth limits it. With many,
matrix products do. Both are counted as the method requires, not as the program executes them, for
steps that reveal equally many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from partita.networks.partition import PartitionTransformer
from partita.training.throughput import peak_flops

# Bytes a second from the device's memory, by a part of its name, from the vendors' data sheets.
BANDWIDTHS = {
    "B200": 8.0e12,
    "H200": 4.8e12,
    "H100": 3.35e12,
    "A100": 2.04e12,
    "L40S": 0.864e12,
    "L4": 0.3e12,
    "4090": 1.008e12,
    "V100": 0.9e12,
}


@dataclass(frozen=True)
class Work:
    """Floating-point operations of matrix products, and bytes of weights that are read."""

    flops: float
    weight_bytes: float

    def shares(self, seconds: float, device: torch.device) -> dict[str, float]:
        """The fractions of the device's peak rates that are reached, if the peaks are known."""
        peak, rate = peak_flops(device), bandwidth(device)
        return {
            **({} if peak is None else {"of_matrix_rate": self.flops / seconds / peak}),
            **({} if rate is None else {"of_bandwidth": self.weight_bytes / seconds / rate}),
        }


def bandwidth(device: torch.device) -> float | None:
    """Bytes a second of the device's memory; None if it is unknown (and for CPUs)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((rate for part, rate in BANDWIDTHS.items() if part in name), None)


def sampling_work(network: nn.Module, batch: int, length: int, steps: int, bytes_each: int) -> Work:
    """The work of a planned sampler: `steps` steps that reveal batch x length tokens."""
    config: Any = network.config
    head = _matrices(network.head)  # type: ignore[arg-type]
    tokens, revealed = batch * length, batch * length / steps
    weights = _matrices(network) - _matrices(network.embed)  # type: ignore[arg-type]
    if not isinstance(network, PartitionTransformer):
        blocks = (
            2.0 * (weights - head) * tokens + 4.0 * config.width * config.depth * length * tokens
        )
        return Work(steps * (blocks + 2.0 * head * revealed), steps * weights * bytes_each)
    depth, width, _ = network.options.decoder(config)
    encoder = _matrices(network.encoder)
    memory = sum(
        parameter.numel()
        for name, parameter in network.named_parameters()
        if name.endswith("key_value.weight")
    )
    # Over all steps, 0, r, 2r, ... tokens of a row are visible: on average half of its length.
    read = batch * (length - length / steps) / 2
    squares = _mean_square(length, steps)
    encoding = 2.0 * encoder * read + 4.0 * config.width * (config.depth - depth) * batch * squares
    decoding = 2.0 * (weights - encoder - memory) * revealed
    crossing = 4.0 * width * (depth + 1) * (read / batch) * revealed
    flops = steps * (encoding + 2.0 * memory * read + decoding + crossing)
    return Work(flops, steps * weights * bytes_each)


def _mean_square(length: int, steps: int) -> float:
    """The mean of n^2 over steps with n = 0, r, 2r, ... visible tokens."""
    return (length / steps) ** 2 * (steps - 1) * (2 * steps - 1) / 6


def _matrices(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim >= 2)
