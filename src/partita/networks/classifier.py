"""A small convolutional classifier of images, whose last hidden layer serves as features."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.errors import require, require_int

GROUPS = 8
_SMALLEST_GRID = 8  # the resolution is halved until the longer side is at most this, and twice


class ClassifierNetwork(nn.Module):
    """Convolutions and pooling, one hidden layer, logits. Pixels are in [-1, 1]."""

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        classes: int,
        *,
        width: int = 16,
        dimension: int = 64,
    ) -> None:
        """`width` is the number of channels at full resolution, `dimension` that of features."""
        super().__init__()
        require_int(channels, "channels", 1, 4)
        require_int(classes, "classes", 2, 1 << 16)
        require_int(width, "width", GROUPS, 1 << 12)
        require(width % GROUPS == 0, "width", f"must be a multiple of {GROUPS}, got {width}")
        require_int(dimension, "dimension", 1, 1 << 14)
        for side in size:
            require_int(side, "size", 1, 1 << 12)
        self.channels, self.size, self.classes = channels, size, classes
        self.width, self.dimension = width, dimension
        layers, inside, grid = _convolutions(channels, size, width)
        self.convolutions = nn.Sequential(*layers)
        self.hidden = nn.Linear(inside * grid[0] * grid[1], dimension)
        self.head = nn.Linear(dimension, classes)

    def features(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """The activations of the hidden layer before the logits."""
        hidden: Tensor = self.hidden(torch.flatten(self.convolutions(x), 1))
        return F.silu(hidden)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K"]:
        logits: Tensor = self.head(self.features(x))
        return logits


def _convolutions(
    channels: int, size: tuple[int, int], width: int
) -> tuple[list[nn.Module], int, tuple[int, int]]:
    """The layers, and the channels and size of their output."""
    wanted = max(2, math.ceil(math.log2(max(size) / _SMALLEST_GRID)))
    halvings = min(wanted, int(math.log2(min(size))))
    layers: list[nn.Module] = []
    before, after, (rows, columns) = channels, width, size
    for level in range(halvings + 1):
        after = min(width << level, 4 * width)
        convolution = nn.Conv2d(before, after, 3, padding=1)
        layers += [convolution, nn.GroupNorm(GROUPS, after), nn.SiLU()]
        if level < halvings:
            layers.append(nn.MaxPool2d(2))
            rows, columns = rows // 2, columns // 2
        before = after
    return layers, after, (rows, columns)
