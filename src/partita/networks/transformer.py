"""The bidirectional transformer (DiT style): tokens in, logits out, independent of the method.

Pre-norm blocks with rotary positions. With `time` or `classes` set, every block is modulated by
adaLN (shift, scale and gate for attention, then for the MLP); without them it has no adaLN layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, DenseLayout, Layout, PackedLayout, Queries
from partita.contracts.packed import NOWHERE, PackedBatch, unsorted
from partita.errors import require
from partita.networks.attention import KeyValueCache
from partita.networks.base import CachingNetwork
from partita.networks.blocks import Block, initialize
from partita.networks.conditions import Condition, RowCondition
from partita.networks.kind_options import KindOptions, TokenOptions
from partita.networks.options import TransformerConfig
from partita.networks.trunk import Trunk


class Transformer(Trunk, CachingNetwork):
    """Maps tokens (and positions, a scalar, a label) to logits."""

    recordable = True
    causal = False
    Options: ClassVar[type[KindOptions]] = TokenOptions

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        initialize(self.blocks, config.depth)
        self._add_head(config.width)

    def forward(
        self,
        tokens: Int[Tensor, "*tokens"],
        *,
        queries: Queries | None = None,
        scalar: Float[Tensor, "B"] | Float[Tensor, "B L"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        positions: Int[Tensor, "N"] | None = None,
        caches: list[KeyValueCache] | None = None,
        project: bool = True,
    ) -> Float[Tensor, "*out V"]:
        """Logits at every token, or only at the queried ones (only those are projected).

        With `project=False`, the inputs of the output head instead of the logits.

        Tokens are [B, L], or packed [N] with a `PackedLayout`. There is one scalar and one label
        for each row, or for each sequence of packed tokens; a scalar may also be given for each
        token of a row.

        `positions` are those of the tokens in their sequences, if not consecutive. With `caches`,
        tokens also attend to the cached tokens, and are appended to them.
        """
        hidden, condition = self._trunk(tokens, scalar, label, layout, positions, caches)
        if queries is not None:
            hidden = hidden[queries.rows, queries.positions]
            condition = self._of_queries(condition, queries)
        return (self._project if project else self._vectors)(hidden, condition)

    def _trunk(
        self,
        tokens: Tensor,
        scalar: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        positions: Tensor | None,
        caches: list[KeyValueCache] | None,
    ) -> tuple[Tensor, Condition | None]:
        if isinstance(layout, PackedLayout):
            layout.check(tokens)
        if caches is not None:
            self._check_caches(tokens, layout, caches)
        if self.causal:
            layout = replace(layout, causal=True)
        if positions is None:
            positions = self._positions(tokens, layout, 0 if caches is None else caches[0].filled)
        condition = self._conditions(tokens, scalar, label, layout)
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places[positions]
        if self.registers is not None:
            return self._among_registers(x, positions, layout, condition), condition
        return self._through(x, positions, layout, condition, caches), condition

    def _through(
        self,
        x: Tensor,
        positions: Tensor,
        layout: Layout,
        condition: Condition | None,
        caches: list[KeyValueCache] | None = None,
    ) -> Tensor:
        """All blocks."""
        rotary = self._rotary(positions, self.config.width // self.config.heads)
        for index, block in enumerate(self.blocks):
            if caches is None:
                x = self._run(block, x, rotary, layout, condition)
            else:
                x = block(x, rotary, layout, condition, caches[index])
        return x

    def _among_registers(
        self, x: Tensor, positions: Tensor, layout: Layout, condition: Condition | None
    ) -> Tensor:
        """All blocks, with registers after each row, or after each sequence of a packed layout."""
        assert self.registers is not None
        each = self.config.registers
        if isinstance(layout, DenseLayout):
            problem = "a mask does not say what the network's registers may read"
            require(layout.mask is None, "layout", problem, "use PackedLayout, or no registers")
            added = self.registers.expand(x.shape[0], -1, -1).to(x.dtype)
            if isinstance(condition, Tensor) and condition.shape[1] > 1:  # each token has its own
                condition = torch.cat([condition, condition[:, :1].expand(-1, each, -1)], 1)
            nowhere = F.pad(positions, (0, each), value=NOWHERE)
            return self._through(torch.cat([x, added], 1), nowhere, layout, condition)[:, :-each]
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        sequences = layout.sequence_ids()
        rows = sequences if condition is None else self._rows(condition, shape)
        # A register has the condition of the first token of its sequence.
        first = layout.cu_seqlens_q[:-1].clamp(max=len(x) - 1)
        positions = positions.expand(shape[:-1]).flatten()
        packed = PackedBatch(
            layout.cu_seqlens_q, layout.max_seqlen_q, sequences, positions, Queries(rows, positions)
        )
        joint, order = packed.with_registers(each, rows[first])
        if condition is not None:
            vectors = (
                condition.vectors
                if isinstance(condition, RowCondition)
                else condition.flatten(0, 1)
            )
            condition = RowCondition(vectors, joint.indices.rows)
        added = self.registers.repeat(layout.count, 1).to(x.dtype)
        hidden = self._through(
            torch.cat([x, added])[order], joint.position_ids, joint.reading(joint), condition
        )
        return unsorted(hidden, order)[: len(x)].view(shape)

    @staticmethod
    def _of_queries(condition: Condition | None, queries: Queries) -> Condition | None:
        """The conditions of the queried tokens of a rectangular batch."""
        if condition is None or isinstance(condition, RowCondition):
            return condition
        each = condition.shape[1]  # one for a row, or one for each of its tokens
        if each == 1:
            return RowCondition(condition[:, 0], queries.rows)
        return RowCondition(condition.flatten(0, 1), queries.rows * each + queries.positions)

    @staticmethod
    def _rows(condition: Condition, shape: torch.Size) -> Tensor:
        """The index of each token's condition vector."""
        if isinstance(condition, RowCondition):
            return condition.rows
        rows, each = condition.shape[:2]
        numbers = torch.arange(rows * each, device=condition.device)
        return numbers if each == shape[1] else numbers.repeat_interleave(shape[1])

    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Empty caches for `batch` sequences of the network's full length."""
        config, weight = self.config, self.embed.weight
        shape = (batch, config.length, config.heads, config.width // config.heads)
        return [
            KeyValueCache(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.blocks
        ]

    def _check_caches(self, tokens: Tensor, layout: Layout, caches: list[KeyValueCache]) -> None:
        """Refuse inputs that a cache cannot hold: it holds rows of consecutive tokens."""
        problem = "stand at the end, where a cache goes on"
        require(self.registers is None, "network.registers", problem, "use none")
        dense = isinstance(layout, DenseLayout) and tokens.ndim == 2
        require(dense, "layout", "packed tokens have no cache", "give each sequence a row")
        end = caches[0].filled + tokens.shape[1]
        problem = f"{end} tokens do not fit the network's {self.config.length}"
        require(end <= self.config.length, "length", problem)

    def _positions(self, tokens: Tensor, layout: Layout, past: int) -> Tensor:
        # On a line, rotary attention depends on differences only, so documents in a row need not
        # start at position 0. On a grid they do, as they may begin anywhere in a row of it. So they
        # do with registers, which are not rotated and therefore reveal a token's distance from 0.
        absolute = self.places is not None or self.registers is not None
        relative = not self.config.grid and not absolute
        if isinstance(layout, PackedLayout) and (tokens.ndim == 1 or not relative):
            return layout.position_ids().view(tokens.shape)
        return torch.arange(past, past + tokens.shape[-1], device=tokens.device)

    def _conditions(
        self, tokens: Tensor, scalar: Tensor | None, label: Tensor | None, layout: Layout
    ) -> Condition | None:
        """A vector for each row (to broadcast over its tokens), token or sequence."""
        if isinstance(layout, PackedLayout) and tokens.ndim == 1:
            vectors = self.condition(scalar, label, layout.count)
            return None if vectors is None else RowCondition(vectors, layout.sequence_ids())
        if scalar is not None and scalar.ndim == 2:
            problem = f"has the shape {list(scalar.shape)}, tokens have {list(tokens.shape)}"
            require(scalar.shape == tokens.shape, "time", problem, "give one for each row or token")
            labels = None if label is None else label.repeat_interleave(tokens.shape[1])
            vectors = self.condition(scalar.flatten(), labels, tokens.numel())
            return None if vectors is None else vectors.view(*tokens.shape, -1)
        vectors = self.condition(scalar, label, tokens.shape[0])
        return None if vectors is None else vectors[:, None]
