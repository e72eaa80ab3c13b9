"""The bidirectional transformer (DiT style): tokens in, logits out; it knows nothing of diffusion.

Pre-norm blocks with rotary positions. With `time` or `classes` set, every block is modulated by
adaLN (shift, scale and gate for attention, then for the MLP); without them no such layer exists.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partita.networks.attention import KeyValueCache
from partita.networks.base import Queries
from partita.networks.blocks import Block, initialise
from partita.networks.layers import Rotary
from partita.networks.layouts import DENSE, Layout, Segments
from partita.networks.options import TransformerConfig, refuse_decoder
from partita.networks.trunk import Trunk


class Transformer(Trunk):
    """Tokens (and positions, a scalar, a label) to logits."""

    causal = False

    def __init__(self, config: TransformerConfig) -> None:
        refuse_decoder(config)
        super().__init__(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        initialise(self.blocks, config.depth)
        self._add_head(config.width)

    def forward(
        self,
        tokens: Int[Tensor, "*tokens"],
        *,
        queries: Queries | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "*out V"]:
        """Logits at every token, or at the queried ones alone (the projection runs on those).

        Tokens are [B, L], or packed [N] with a `Segments` layout. A scalar and a label belong to a
        row, or to a segment of packed tokens.
        """
        hidden, condition = self._trunk(tokens, scalar, label, layout, positions=None, caches=None)
        if queries is None:
            return self._project(hidden, condition)
        picked = hidden[queries.rows, queries.positions]
        if condition is not None:
            condition = condition[:, 0][queries.rows]
        return self._project(picked, condition)

    def _trunk(
        self,
        tokens: Tensor,
        scalar: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        positions: Tensor | None,
        caches: list[KeyValueCache] | None,
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(layout, Segments):
            layout.check(tokens)
        if self.causal:
            layout = replace(layout, causal=True)
        if positions is None:
            positions = self._positions(tokens, layout)
        condition = self._conditions(tokens, scalar, label, layout)
        head_width = self.config.width // self.config.heads
        rotary = Rotary.at(positions, head_width, self.config.rotary_base)
        x = self.embed(tokens)
        for index, block in enumerate(self.blocks):
            if caches is None:
                x = self._run(block, x, rotary, layout, condition)
            else:
                x = block(x, rotary, layout, condition, caches[index])
        return x, condition

    @staticmethod
    def _positions(tokens: Tensor, layout: Layout) -> Tensor:
        if isinstance(layout, Segments) and tokens.ndim == 1:
            return layout.query_positions()
        # Rotary attention sees differences alone, so documents in a row need no count of their own.
        return torch.arange(tokens.shape[-1], device=tokens.device)

    def _conditions(
        self, tokens: Tensor, scalar: Tensor | None, label: Tensor | None, layout: Layout
    ) -> Tensor | None:
        """One vector per row (or packed segment), shaped to broadcast over the tokens."""
        if isinstance(layout, Segments) and tokens.ndim == 1:
            vectors = self._condition(scalar, label, layout.query_offsets.numel() - 1)
            return None if vectors is None else vectors[layout.segment_of_query()]
        vectors = self._condition(scalar, label, tokens.shape[0])
        return None if vectors is None else vectors[:, None]
