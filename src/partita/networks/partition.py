"""The Partition Transformer (PGM, section 4): no information crosses from a group to itself.

    encoder     self-attention blocks in which a token reads its own group alone
    GroupSwap   queries that know nothing of their own group read the encoder's output of the other
    decoder     cross-attention blocks: keys and values from the encoder, queries from GroupSwap
                or from the block before

The logits at a position depend on the tokens of the other group alone, so one pass predicts all
tokens of both groups. When sampling, the revealed tokens are the one group: they alone are
encoded, and only the positions asked for are decoded.

Each group may have registers of its own, so that an empty one still has something to read. What
is revealed when a model writes reads those of group 0. So that a likelihood is that of the model
which writes, both groups read those outside of training.

Both run on packed tokens (`packing.py`). A plain path with L x L masks stays as the oracle.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, Dense, Layout, Queries
from partita.networks.base import PartitionNetwork
from partita.networks.blocks import Block, CrossBlock, initialise
from partita.networks.conditions import Condition, Told
from partita.networks.group_swap import GroupSwap
from partita.networks.kind_options import PartitionOptions
from partita.networks.options import TransformerConfig
from partita.networks.packing import Documents, Owners, Packed, places_of
from partita.networks.registers import NOWHERE, Joined
from partita.networks.trunk import Trunk


class PartitionTransformer(Trunk, PartitionNetwork):
    """Tokens and their groups to logits that never look at a token's own group."""

    Options = PartitionOptions
    options: PartitionOptions
    groups = 2
    recordable = True
    packed: bool = True
    """How `both` computes: packed, or with a mask for every pair of positions."""

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
        documents, known = Documents.of(tokens, layout), places_of(revealed, tokens)
        number, count = documents.number, documents.count
        clean = Packed.sort(known, number[known.rows, known.positions], count, documents)
        asked = Packed.sort(queries, number[queries.rows, queries.positions], count, documents)
        condition = self.condition(scalar, label, tokens.shape[0])
        owners = Owners.of(documents, groups=1)
        vectors = asked.restored(self.vectors(tokens, clean, asked, condition, owners))
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
        packed: bool | None = None,
        project: bool = True,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """Logits of all real tokens, each from the other group, and where they stand.

        With `project=False` what the head reads, in place of the logits. `packed=False` computes
        the same with L x L masks (the network's setting unless given).
        """
        documents, real_places = Documents.of(tokens, layout), places_of(real, tokens)
        group = 2 * documents.number + groups.long()
        condition = self.condition(scalar, label, tokens.shape[0])
        if not (self.packed if packed is None else packed):
            hidden = self._masked(tokens, group, documents, real, condition)
            answered, hidden = real_places, hidden[real_places.rows, real_places.positions]
        else:
            own = group[real_places.rows, real_places.positions]
            clean = Packed.sort(real_places, own, 2 * documents.count, documents)
            asked = Packed.sort(real_places, own ^ 1, 2 * documents.count, documents)
            owners = Owners.of(documents, groups=2)
            hidden = self._packed(tokens, clean, asked, condition, owners)
            answered = asked.places
        told = None if condition is None else Told(condition, answered.rows)
        return (self._project if project else self._vectors)(hidden, told), answered

    def vectors(
        self,
        tokens: Int[Tensor, "B L"],
        clean: Packed,
        asked: Packed,
        condition: Float[Tensor, "B C"] | None,
        owners: Owners,
    ) -> Float[Tensor, "N W"]:
        """What the head reads, for places that are packed already."""
        hidden = self._packed(tokens, clean, asked, condition, owners)
        told = None if condition is None else Told(condition, asked.places.rows)
        return self._vectors(hidden, told)

    def _packed(
        self,
        tokens: Tensor,
        clean: Packed,
        asked: Packed,
        condition: Tensor | None,
        owners: Owners,
    ) -> Tensor:
        """Encode the clean tokens, decode what is asked of their segments."""
        told, asking = None, None
        if condition is not None:
            told, asking = clean.places.rows, Told(condition, asked.places.rows)
        x = self.embed(tokens[clean.places.rows, clean.places.positions])
        positions, segments = clean.positions, clean.segments
        inside, across = clean.reading(clean), asked.reading(clean)
        if self.registers is not None:
            each = self.config.registers
            joined = Joined.of(segments, len(owners.rows), each)
            added = self._registers_of(owners.groups).flatten(0, 1)
            nowhere = positions.new_full((len(added),), NOWHERE)
            x, positions = joined.join(x, added.to(x.dtype)), joined.join(positions, nowhere)
            if told is not None:
                told = joined.join(told, owners.rows.repeat_interleave(each, 0))
            inside, across, segments = joined.layout(inside), joined.keys(across), joined.segments
        known = None if condition is None or told is None else Told(condition, told)
        memory = self._encode(x, positions, inside, known)
        summary = self.swap.summary(memory, segments, len(owners.rows))
        aggregate = None if summary is None else summary[asked.segments]
        return self._decode(memory, positions, asked.positions, aggregate, across, asking)

    def _registers_of(self, groups: Int[Tensor, "*n"]) -> Float[Tensor, "*n R W"]:
        """The registers of some groups: their own in training, those of group 0 otherwise."""
        assert self.registers is not None
        sets = self.registers.view(2, self.config.registers, -1)
        return sets[groups if self.training else torch.zeros_like(groups)]

    def _masked(
        self,
        tokens: Tensor,
        group: Tensor,
        documents: Documents,
        real: Tensor | None,
        condition: Tensor | None,
    ) -> Tensor:
        """The oracle: dense attention with a mask for every pair of positions."""
        readable = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        x = self.embed(tokens.where(readable, 0))
        positions, read = documents.position, documents.position
        group_read = group
        if self.registers is not None:
            slots, there = documents.slots()  # two for each document, one for each of its groups
            each = self.config.registers
            added = self._registers_of(slots % 2).flatten(1, 2)
            slots, there = (y.repeat_interleave(each, 1) for y in (slots, there))
            x = torch.cat([x, added.to(x.dtype)], 1)
            read = F.pad(positions, (0, slots.shape[1]), value=NOWHERE)
            group_read, readable = torch.cat([group, slots], 1), torch.cat([readable, there], 1)
        same = (group_read[:, :, None] == group_read[:, None, :]) & readable[:, None, :]
        other = (group[:, :, None] ^ 1 == group_read[:, None, :]) & readable[:, None, :]
        told = None if condition is None else condition[:, None]
        memory = self._encode(x, read, Dense(same), told)
        summary = self.swap.summary(memory[readable], group_read[readable], 2 * documents.count)
        aggregate = None if summary is None else summary[group ^ 1]
        return self._decode(memory, read, positions, aggregate, Dense(other), told)

    # The three stages, packed or dense ---------------------------------------------------------

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
