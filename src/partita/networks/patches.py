"""A transformer of image patches: each hidden vector stands for a patch of pixels.

The levels of a patch, masked or not, are embedded together: every position in a patch has its own
table (with a row for the mask), and the vectors are summed. Rotary positions encode the patch's row
and column. The logits of all pixels of a patch come from one hidden vector; they are independent
given the visible pixels, as in any masked model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partita.contracts.layouts import DENSE
from partita.errors import require
from partita.networks.blocks import Block, initialize
from partita.networks.kind_options import PatchOptions
from partita.networks.layers import Rotary
from partita.networks.options import TransformerConfig
from partita.networks.pixels import PixelTrunk


class PatchTransformer(PixelTrunk):
    """Maps masked images to logits, with the blocks of `Transformer` on patches."""

    Options = PatchOptions
    options: PatchOptions

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        side, (height, width, channels) = self.options.patch, self.shape
        problem = f"{height} x {width} pixels are no whole number of patches of {side} x {side}"
        require(height % side == 0 and width % side == 0, "network.options.patch", problem)
        self.columns = width // side
        self.tokens_each = side * side * channels
        self.embed = nn.Embedding(self.tokens_each * config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        initialize(self.blocks, config.depth)
        self._add_head(config.width, self.tokens_each)

    def _read(self, image: Tensor, condition: Tensor | None) -> Tensor:
        tables = torch.arange(self.tokens_each, device=image.device) * self.config.vocab_size
        hidden = self.embed(self._cut(image) + tables).sum(-2)
        vectors = None if condition is None else condition[:, None]
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        head_width = self.config.width // self.config.heads
        rotary = Rotary.at(positions, head_width, self.config.rotary_base, self.columns)
        for block in self.blocks:
            hidden = self._run(block, hidden, rotary, DENSE, vectors)
        return self._joined(self._numbers(hidden, vectors))

    def _cut(self, image: Tensor) -> Tensor:
        """Images [B, H, W, C] as rows of patches [B, N, tokens of a patch]."""
        side, count = self.options.patch, image.shape[0]
        rows = image.reshape(count, -1, side, self.columns, side, self.shape.channels)
        return rows.transpose(2, 3).reshape(count, -1, self.tokens_each)

    def _joined(self, numbers: Tensor) -> Tensor:
        """Outputs of every patch [B, N, tokens of a patch times P], in the order of tokens."""
        side, count, channels = self.options.patch, numbers.shape[0], self.shape.channels
        size = self.head_size
        rows = numbers.reshape(count, -1, self.columns, side, side, channels, size)
        return rows.transpose(2, 3).reshape(count, -1, size)
