"""The exponential moving average of weights: one implementation for every method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from partita.errors import require
from partita.parallel import local


class MovingAverage:
    """Moving average of weights: shadow <- d shadow + (1 - d) weights after every step.

    The decay warms up as d_n = min(decay, (1 + n) / (10 + n)) for the n-th update, so that the
    random start is forgotten early. Sharded weights are averaged shard by shard.
    """

    def __init__(self, module: nn.Module, decay: float = 0.9999) -> None:
        require(0 <= decay < 1, "ema", f"must lie in [0, 1), got {decay}")
        self.decay = decay
        self.updates = 0
        self.shadow: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in module.named_parameters()
        }

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Update the average with the module's weights after an optimizer step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = dict(module.named_parameters())
        shadows = [local(shadow) for shadow in self.shadow.values()]
        newest = [local(weights[name].detach()) for name in self.shadow]
        torch._foreach_lerp_(shadows, newest, 1 - decay)

    def copy_to(self, module: nn.Module) -> None:
        """Overwrite the module's weights with the averaged ones."""
        self._copy(module, self.shadow)

    @contextmanager
    def applied_to(self, module: nn.Module) -> Iterator[None]:
        """Put the averaged weights into the module inside the block; restore its own afterwards."""
        own = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        self.copy_to(module)
        try:
            yield
        finally:
            self._copy(module, own)

    @staticmethod
    @torch.no_grad()
    def _copy(module: nn.Module, values: dict[str, Tensor]) -> None:
        for name, parameter in module.named_parameters():
            local(parameter.detach()).copy_(local(values[name]))
