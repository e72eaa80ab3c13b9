"""A small U-Net for images, after that of DDPM: enough for digits on a laptop.

It has residual blocks of convolutions at every level, conditioned on the time. Each level on the
way down has half the resolution; there is a transformer block at the smallest one; and each level
on the way up is concatenated with the output of the same level on the way down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE
from partita.contracts.shapes import RowTimes
from partita.errors import require, require_int
from partita.networks.blocks import Block, initialize
from partita.networks.layers import Conditioning, Rotary, modulate, zero_linear
from partita.networks.options import TransformerConfig

GROUPS = 8
CONDITION_WIDTH = 128
HEAD_WIDTH = 32

Norm = Callable[[int], nn.Module]
"""Creates the norm for a number of channels."""


class Convolutions(nn.Module):
    """Norm, SiLU, 3x3 convolution, twice; the condition shifts and scales between the two."""

    def __init__(self, inputs: int, outputs: int, dropout: float, norm: Norm | None = None) -> None:
        super().__init__()
        norm = norm or partial(nn.GroupNorm, GROUPS)
        self.norm_in = norm(inputs)
        self.convolution_in = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm_out = norm(outputs)
        self.convolution_out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.modulation: nn.Linear | None = zero_linear(CONDITION_WIDTH, 2 * outputs)
        self.around = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.dropout = dropout
        zero_convolution(self.convolution_out)

    def forward(
        self, x: Float[Tensor, "B I H W"], condition: Float[Tensor, "B C"] | None
    ) -> Float[Tensor, "B O H W"]:
        branch = self.convolution_in(F.silu(self.norm_in(x)))
        branch = F.silu(self._modulated(branch, condition))
        branch = self.convolution_out(F.dropout(branch, self.dropout, self.training))
        result: Tensor = self.around(x) + branch
        return result

    def _modulated(self, branch: Tensor, condition: Tensor | None) -> Tensor:
        """The second norm, modulated by the condition."""
        assert self.modulation is not None
        shift, scale = self.modulation(condition)[:, :, None, None].chunk(2, 1)
        return modulate(self.norm_out(branch), shift, scale)


class UNet(nn.Module):
    """Maps images [B, C, H, W] and times [B] (and labels) to images of the same shape."""

    def __init__(
        self,
        channels: int = 1,
        *,
        width: int = 32,
        multipliers: tuple[int, ...] = (1, 2),
        depth: int = 1,
        classes: int = 0,
        dropout: float = 0.0,
    ) -> None:
        """Level i has `width` times `multipliers[i]` channels and `depth` blocks on each way."""
        super().__init__()
        require_int(channels, "channels")
        require_int(depth, "depth")
        problem = f"must be a multiple of {HEAD_WIDTH}, got {width}"
        require(width % HEAD_WIDTH == 0, "width", problem)
        require(bool(multipliers), "multipliers", "is empty", "(1, 2) are two levels")
        self.classes = classes
        self.conditioning = Conditioning(CONDITION_WIDTH, time=True, classes=classes)
        widths = [width * multiplier for multiplier in multipliers]
        self.enter = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for level, size in enumerate(widths):
            sizes = [before] + [size] * (depth - 1)
            self.down.extend(Convolutions(inputs, size, dropout) for inputs in sizes)
            sizes = [2 * size] + [size] * (depth - 1)
            self.up.extend(Convolutions(inputs, size, dropout) for inputs in sizes)
            if level + 1 < len(widths):
                self.shrink.append(nn.Conv2d(size, size, 3, stride=2, padding=1))
                self.grow.append(nn.Conv2d(widths[level + 1], size, 3, padding=1))
            before = size
        self.depth, self.levels = depth, len(widths)
        self.middle = nn.ModuleList(Convolutions(before, before, dropout) for _ in range(2))
        self.heads = before // HEAD_WIDTH
        config = TransformerConfig(
            vocab_size=2,  # it reads no tokens
            width=before,
            heads=self.heads,
            depth=1,
            time=True,
            condition_width=CONDITION_WIDTH,
            dropout=dropout,
        )
        self.attention = Block(config)
        initialize([self.attention], 1)
        self.norm_out = nn.GroupNorm(GROUPS, widths[0])
        self.leave = nn.Conv2d(widths[0], channels, 3, padding=1)
        zero_convolution(self.leave)

    def forward(
        self,
        x: Float[Tensor, "B C H W"],
        t: Int[Tensor, "B"] | RowTimes,
        label: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B C H W"]:
        require(label is None or self.classes > 0, "label", "this network has no class labels")
        condition = self.conditioning(t.float(), label, x.shape[0])
        hidden, skips = self.enter(x), []
        for level in range(self.levels):
            hidden = self._blocks(self.down, level, hidden, condition)
            skips.append(hidden)
            if level + 1 < self.levels:
                hidden = self.shrink[level](hidden)
        hidden = self._middle(hidden, condition)
        for level in reversed(range(self.levels)):
            if level + 1 < self.levels:
                size = skips[level].shape[-2:]
                hidden = self.grow[level](F.interpolate(hidden, size=size, mode="nearest"))
            hidden = torch.cat([hidden, skips[level]], dim=1)
            hidden = self._blocks(self.up, level, hidden, condition)
        result: Tensor = self.leave(F.silu(self.norm_out(hidden)))
        return result

    def _blocks(
        self, stack: nn.ModuleList, level: int, hidden: Tensor, condition: Tensor
    ) -> Tensor:
        for block in list(stack)[level * self.depth : (level + 1) * self.depth]:
            hidden = block(hidden, condition)
        return hidden

    def _middle(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Convolutions, attention between all positions, convolutions."""
        height, width = hidden.shape[-2:]
        hidden = self.middle[0](hidden, condition)
        positions = torch.arange(height * width, device=hidden.device)
        rotary = Rotary.at(positions, HEAD_WIDTH, 10000.0)
        line = hidden.flatten(2).transpose(1, 2)
        line = self.attention(line, rotary, DENSE, condition[:, None])
        hidden = line.transpose(1, 2).unflatten(2, (height, width))
        result: Tensor = self.middle[1](hidden, condition)
        return result


def zero_convolution(convolution: nn.Conv2d) -> None:
    """Initialize at zero, so that a branch contributes nothing and the network predicts 0."""
    nn.init.zeros_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
