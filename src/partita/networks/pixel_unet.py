"""The U-Net of MD4 for masked pixels: convolutions at full resolution throughout.

The level of every channel is embedded (one table; the mask has its own row), and a convolution
reads the concatenated embeddings of a pixel. Then come `depth` residual blocks; two blocks around
attention between all pixels; and `depth` + 1 blocks with skip connections from the earlier blocks,
in reverse order. A convolution gives the logits of all channels of a pixel.

The condition is added inside every block. All projections into the residual stream are initialized
at zero, and so is the last layer, so the untrained network is exactly uniform.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE
from partita.errors import require
from partita.networks.attention import attend
from partita.networks.layers import Conditioning, zero_linear
from partita.networks.options import TransformerConfig
from partita.networks.pixels import PixelTrunk
from partita.networks.unet import Convolutions, Norm, zero_convolution

GROUPS = 32
GROUP_CHANNELS = 4
GROUP_NORM_EPS = 1e-6


def group_norm(width: int, least: int = GROUP_CHANNELS) -> nn.GroupNorm:
    """32 groups, or fewer so that each has at least `least` channels.

    The reference has 32 at any width. In a group of one channel, the norm removes whatever is the
    same at all pixels, and thereby the condition.
    """
    groups = math.gcd(GROUPS, width)
    while groups > 1 and width // groups < least:
        groups //= 2
    return nn.GroupNorm(groups, width, eps=GROUP_NORM_EPS)


class ConditionedConvolutions(Convolutions):
    """A convolution block in which the condition, if any, is added before the second norm."""

    def __init__(self, config: TransformerConfig, inputs: int, norm: Norm = group_norm) -> None:
        super().__init__(inputs, config.width, config.dropout, norm)
        modulation = zero_linear(config.condition_width, config.width, bias=False)
        self.modulation = modulation if config.conditioned else None

    def _modulated(self, branch: Tensor, condition: Tensor | None) -> Tensor:
        if self.modulation is not None:
            branch = branch + self.modulation(condition)[:, :, None, None]
        normed: Tensor = self.norm_out(branch)
        return normed


class PixelAttention(nn.Module):
    """A norm and attention between all pixels, without positions."""

    several: ClassVar = {"qkv": 3}

    def __init__(self, width: int, heads: int, norm: Norm = group_norm) -> None:
        super().__init__()
        self.heads = heads
        self.norm = norm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = zero_linear(width, width)

    def forward(
        self, x: Float[Tensor, "B W H V"], condition: Float[Tensor, "B C"] | None = None
    ) -> Float[Tensor, "B W H V"]:
        """Attend; the condition is ignored, but all blocks have the same signature."""
        del condition
        line = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(line).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        attended: Tensor = self.out(attend(query, key, value, DENSE).flatten(-2))
        return x + attended.transpose(1, 2).reshape(x.shape)


class PixelUNet(PixelTrunk):
    """Maps masked images to logits, with convolutions at full resolution."""

    def __init__(self, config: TransformerConfig, *, group_channels: int = GROUP_CHANNELS) -> None:
        """The groups of every norm have at least `group_channels` channels."""
        super().__init__(config)
        width, size = config.width, config.condition_width
        require(size % 2 == 0, "network.condition_width", f"must be even, got {size}")
        if config.conditioned:
            self.conditioning = Conditioning(
                size, config.time, config.classes, features=size, hidden=4 * size, inclusive=True
            )
        norm = partial(group_norm, least=group_channels)
        self.tokens_each = self.shape.channels
        self.enter = nn.Conv2d(self.shape.channels * width, width, 3, padding=1)
        ways = (width,) * config.depth, (2 * width,) * (config.depth + 1)
        self.down, self.up = (
            nn.ModuleList(ConditionedConvolutions(config, inputs, norm) for inputs in way)
            for way in ways
        )
        first, last = (ConditionedConvolutions(config, width, norm) for _ in range(2))
        attention = PixelAttention(width, config.heads, norm)
        self.middle = nn.ModuleList([first, attention, last])
        self.norm_out = norm(width)
        self.leave = nn.Conv2d(width, self.shape.channels * self.head_size, 3, padding=1)
        zero_convolution(self.leave)
        nn.init.normal_(self.embed.weight, std=width**-0.5)

    @property
    def attended_width(self) -> float:
        """See `AnyNetwork`: there is one layer of attention, in the middle."""
        return self.config.width

    def _read(self, image: Tensor, condition: Tensor | None) -> Tensor:
        hidden = self.enter(self.embed(image).flatten(3).permute(0, 3, 1, 2))
        skips = [hidden]
        for block in self.down:
            hidden = self._run(block, hidden, condition)
            skips.append(hidden)
        for block in self.middle:
            hidden = self._run(block, hidden, condition)
        for block in self.up:
            hidden = self._run(block, torch.cat([hidden, skips.pop()], dim=1), condition)
        numbers: Tensor = self.leave(F.silu(self.norm_out(hidden)))
        return numbers.permute(0, 2, 3, 1).reshape(len(image), self.config.length, -1)
