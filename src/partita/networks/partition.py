"""The Partition Transformer (PGM, section 4): each group of tokens is predicted from the other.

    encoder     self-attention blocks in which a token attends to its own group only
    GroupSwap   cross-attention: queries that do not depend on their own group's tokens read the
                encoder's output for the other group
    decoder     cross-attention blocks: keys and values from the encoder, queries from GroupSwap
                or from the previous block

The logits at a position depend only on the tokens of the other group, so one pass predicts all
tokens of both groups. In sampling, the revealed tokens are one group: only they are encoded, and
only the queried positions are decoded.

Section 4 leaves norms, MLP and query-key norm open: they are options here (the authors' code has
layer norm and GELU). Registers are an option, too: learned vectors that the encoder adds to each
group, so that predictions have something to read when the other group is empty (without them, all
are then alike). They carry nothing across: each group has its own copy.

Everything runs on packed tokens (`contracts/packed.py`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.packed import PackedBatch, indices_of, unsorted
from partita.contracts.shapes import Marks
from partita.networks.base import PartitionNetwork
from partita.networks.blocks import Block, CrossBlock, initialize
from partita.networks.conditions import Condition, RowCondition
from partita.networks.group_swap import GroupSwap
from partita.networks.kind_options import PartitionOptions
from partita.networks.options import TransformerConfig
from partita.networks.trunk import Trunk


class PartitionTransformer(Trunk, PartitionNetwork):
    """Maps tokens and their groups to logits that never depend on a token's own group."""

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
        initialize([*self.encoder, self.swap, *self.decoder], config.depth)
        for name, parameter in self.swap.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        self._add_head(width)

    @property
    def attended_width(self) -> float:
        """Attention cost of one pass, averaged over partitions (see `AnyNetwork`).

        Groups of shares t and 1 - t, t uniform, have t^2 + (1-t)^2 of all pairs inside the groups,
        2/3 on average, and 2 t (1-t) across, 1/3 on average.
        """
        depth, width, _ = self.options.decoder(self.config)
        encoder = self.config.depth - depth
        return (2 * encoder * self.config.width + (depth + 1) * width) / 3

    # Predicting queried positions from the revealed tokens -------------------------------------

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        revealed: Marks,
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        project: bool = True,
    ) -> Float[Tensor, "N V"]:
        """Logits at the queried positions given the revealed tokens; no other token is read.

        The cost depends on the number of revealed tokens and queries, not on L.
        """
        documents, shape = PackedBatch.of_rows(tokens, layout), tokens.shape
        sequence_ids = documents.sequence_ids.view(shape)
        position_ids = documents.position_ids.view(shape)

        def sort(indices: Queries) -> tuple[PackedBatch, Tensor]:
            positions, sequences = position_ids[indices], sequence_ids[indices]
            return PackedBatch.sort(indices, positions, sequences, documents.count, shape[1])

        clean, _ = sort(indices_of(revealed, tokens))
        queried, order = sort(queries)
        condition = self.condition(scalar, label, shape[0])
        vectors = self.vectors(tokens, clean, queried, condition, documents.row_of_sequence())
        vectors = unsorted(vectors, order)
        return self._logits(self.head(vectors)) if project else vectors

    # Predicting each group from the other ------------------------------------------------------

    def both(
        self,
        tokens: Int[Tensor, "B L"],
        groups: Marks,
        *,
        real: Marks | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        project: bool = True,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """Logits of all real tokens, each given the other group, and their positions.

        With `project=False`, the inputs of the output head instead of the logits.
        """
        documents, length = PackedBatch.of_rows(tokens, layout), tokens.shape[1]
        indices, positions = documents.indices, documents.position_ids
        group = 2 * documents.sequence_ids + groups.flatten()
        if real is not None:
            kept = real.flatten().nonzero()[:, 0]
            indices = Queries(indices.rows[kept], indices.positions[kept])
            positions, group = positions[kept], group[kept]
        count = 2 * documents.count
        clean, _ = PackedBatch.sort(indices, positions, group, count, length)
        # Each token as a query of the other group: number 2d + (1 - g) for group g of document d.
        queried, _ = PackedBatch.sort(indices, positions, group ^ 1, count, length)
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
        """The inputs of the output head for the queries of each sequence, given its clean tokens.

        Sequence i of `queried` reads sequence i of `clean`; `rows[i]` is the row of both.
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
        aggregate = self.swap.aggregates(memory, clean.sequence_ids, clean.count)
        if aggregate is not None:
            aggregate = aggregate[queried.sequence_ids]
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
        x: Tensor = self.swap(self.swap.start(positions, aggregate), memory, rotary, read, layout)
        for block in self.decoder:
            x = self._run(block, x, memory, rotary, read, layout, condition)
        return x
