"""The Partition Transformer (PGM, section 4): no information crosses from a group to itself.

    encoder     self-attention blocks in which a token reads its own group alone
    GroupSwap   queries that know nothing of their own group read the encoder's output of the other
    decoder     cross-attention blocks: keys and values from the encoder, queries from GroupSwap
                or from the block before

The logits at a position depend on the tokens of the other group alone, so one pass predicts all
tokens of both groups. When sampling, the revealed tokens are the one group: they alone are
encoded, and only the queried positions are decoded.

There may be registers, which both groups read beside their own tokens, so that an empty group
still has something to read. What a group makes of them is its own.

Everything runs on packed tokens (`contracts/packed.py`).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.packed import PackedBatch, places_of, unsorted
from partita.networks.base import PartitionNetwork
from partita.networks.blocks import Block, CrossBlock, initialise
from partita.networks.conditions import Condition, RowCondition
from partita.networks.group_swap import GroupSwap
from partita.networks.kind_options import PartitionOptions
from partita.networks.options import TransformerConfig
from partita.networks.trunk import Trunk


class PartitionTransformer(Trunk, PartitionNetwork):
    """Tokens and their groups to logits that never look at a token's own group."""

    Options = PartitionOptions
    options: PartitionOptions
    recordable = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        depth, width, heads = self.options.decoder(config)
        self.encoder = nn.ModuleList(Block(config) for _ in range(config.depth - depth))
        self.swap = GroupSwap(config, self.options, width, heads)
        self.decoder = nn.ModuleList(CrossBlock(config, width, heads) for _ in range(depth))
        self._head_widths = config.width // config.heads, width // heads
        initialise([*self.encoder, self.swap, *self.decoder], config.depth)
        for name, parameter in self.swap.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        self._add_head(width)

    @property
    def attended_width(self) -> float:
        """Two groups with shares t and 1 - t, t uniform, read t^2 + (1-t)^2 of all pairs among
        themselves, which is 2/3 in the mean, and 2 t (1-t) across, which is 1/3."""
        depth, width, _ = self.options.decoder(self.config)
        encoder = self.config.depth - depth
        return (2 * encoder * self.config.width + (depth + 1) * width) / 3

    # One group answers for the other -----------------------------------------------------------

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        project: bool = True,
    ) -> Float[Tensor, "N V"]:
        """Logits at the queried positions given the revealed tokens; no other token is read.

        The work grows with the revealed tokens and the queries, whatever L is.
        """
        documents, shape = PackedBatch.of_rows(tokens, layout), tokens.shape
        number = documents.sequence_ids.view(shape)
        position = documents.position_ids.view(shape)

        def sort(places: Queries) -> tuple[PackedBatch, Tensor]:
            return PackedBatch.sort(
                places, position[places], number[places], documents.count, shape[1]
            )

        clean, _ = sort(places_of(revealed, tokens))
        queried, order = sort(queries)
        condition = self.condition(scalar, label, shape[0])
        vectors = self.vectors(tokens, clean, queried, condition, documents.row_of_sequence())
        vectors = unsorted(vectors, order)
        return self._logits(self.head(vectors)) if project else vectors

    # Each group answers for the other ----------------------------------------------------------

    def both(
        self,
        tokens: Int[Tensor, "B L"],
        groups: Bool[Tensor, "B L"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        project: bool = True,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """Logits of all real tokens, each from the other group, and where they stand.

        With `project=False` what the head reads, in place of the logits.
        """
        documents, length = PackedBatch.of_rows(tokens, layout), tokens.shape[1]
        places, positions = documents.indices, documents.position_ids
        group = 2 * documents.sequence_ids + groups.flatten()
        if real is not None:
            kept = real.flatten().nonzero()[:, 0]
            places = Queries(places.rows[kept], places.positions[kept])
            positions, group = positions[kept], group[kept]
        count = 2 * documents.count
        clean, _ = PackedBatch.sort(places, positions, group, count, length)
        queried, _ = PackedBatch.sort(places, positions, group ^ 1, count, length)
        condition = self.condition(scalar, label, tokens.shape[0])
        rows = documents.row_of_sequence().repeat_interleave(2)
        vectors = self.vectors(tokens, clean, queried, condition, rows)
        return self._logits(self.head(vectors)) if project else vectors, queried.indices

    def vectors(
        self,
        tokens: Int[Tensor, "B L"],
        clean: PackedBatch,
        queried: PackedBatch,
        condition: Float[Tensor, "B C"] | None,
        rows: Int[Tensor, "S"],
    ) -> Float[Tensor, "N W"]:
        """What the head reads for what is queried of sequences, given their clean tokens.

        Sequences with the same number belong together; `rows` are those that they are of.
        """
        x = self.embed(tokens[clean.indices])
        if self.registers is not None:
            added = self.registers.repeat(clean.count, 1).to(x.dtype)
            clean, order = clean.with_registers(self.config.registers, rows)
            x = torch.cat([x, added])[order]
        known, wanted = None, None
        if condition is not None:
            known = RowCondition(condition, clean.indices.rows)
            wanted = RowCondition(condition, queried.indices.rows)
        memory = self._encode(x, clean.position_ids, clean.reading(clean), known)
        summary = self.swap.summary(memory, clean.sequence_ids, clean.count)
        aggregate = None if summary is None else summary[queried.sequence_ids]
        positions, across = (clean.position_ids, queried.position_ids), queried.reading(clean)
        hidden = self._decode(memory, *positions, aggregate, across, wanted)
        return self._vectors(hidden, wanted)

    # The stages --------------------------------------------------------------------------------

    def _encode(
        self, x: Tensor, positions: Tensor, layout: Layout, condition: Condition | None
    ) -> Tensor:
        rotary = self._rotary(positions, self._head_widths[0])
        for block in self.encoder:
            x = self._run(block, x, rotary, layout, condition)
        return x

    def _decode(
        self,
        memory: Tensor,
        memory_positions: Tensor,
        positions: Tensor,
        aggregate: Tensor | None,
        layout: Layout,
        condition: Condition | None,
    ) -> Tensor:
        width = self._head_widths[1]
        rotary, read = self._rotary(positions, width), self._rotary(memory_positions, width)
        x: Tensor = self.swap(self.swap.queries(positions, aggregate), memory, rotary, read, layout)
        for block in self.decoder:
            x = self._run(block, x, memory, rotary, read, layout, condition)
        return x
