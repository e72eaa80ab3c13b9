"""The one packed batch: sequences of different lengths, one after the other, without padding.

The names are those of flash-attention. A batch of two rows of four tokens, of which the first row
has three tokens and the second one two:

    >>> import torch
    >>> rows = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    >>> real = torch.tensor([[True, True, True, False], [True, True, False, False]])
    >>> batch = PackedTokens.of(rows, real)
    >>> batch.tokens
    tensor([5, 6, 7, 8, 9])
    >>> batch.cu_seqlens  # row 0 has the packed tokens 0, 1, 2, row 1 the tokens 3, 4
    tensor([0, 3, 5], dtype=torch.int32)
    >>> batch.indices.rows, batch.indices.positions  # where each of them came from
    (tensor([0, 0, 0, 1, 1]), tensor([0, 1, 2, 0, 1]))
    >>> batch.position_ids  # where each stands in its sequence
    tensor([0, 1, 2, 0, 1])

A partition is a permutation. Sorted by group, the tokens of a row are two consecutive sequences:
attention inside a group is attention inside a sequence, and attention across groups is attention
of one sequence's queries to the other one's keys. No L x L mask is ever made. Of the same rows,
let the tokens 6 and 8 be group 1, so that there are the sequences (5, 7), (6), (9), (8):

    >>> groups = torch.tensor([0, 1, 0, 1, 0])
    >>> numbers = 2 * batch.sequence_ids + groups
    >>> own, order = PackedBatch.sort(batch.indices, batch.position_ids, numbers, 4, 4)
    >>> batch.tokens[order]
    tensor([5, 7, 6, 9, 8])
    >>> own.cu_seqlens, own.max_seqlen
    (tensor([0, 2, 3, 4, 5], dtype=torch.int32), 2)
    >>> other, order = PackedBatch.sort(batch.indices, batch.position_ids, numbers ^ 1, 4, 4)
    >>> batch.tokens[order]  # the queries: sequence i is what reads the keys of sequence i above
    tensor([6, 5, 7, 8, 9])
    >>> layout = other.reading(own)
    >>> layout.cu_seqlens_q, layout.cu_seqlens_k
    (tensor([0, 1, 3, 4, 5], dtype=torch.int32), tensor([0, 2, 3, 4, 5], dtype=torch.int32))
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int, Int32, Int64, Shaped
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Layout, PackedLayout, Queries
from partita.devices import readable
from partita.moved import name_of_before

NOWHERE = 0
"""The position of what has none: there rotary attention turns nothing."""


@dataclass(frozen=True)
class PackedBatch:
    """Where packed tokens come from, and which sequence each belongs to."""

    cu_seqlens: Int32[Tensor, "offsets"]
    """Where each sequence begins, and where the last one ends."""
    max_seqlen: int
    """No sequence is longer."""
    sequence_ids: Int[Tensor, "N"]
    """The sequence of each token."""
    position_ids: Int[Tensor, "N"]
    """Where each token stands in its sequence, or in the document that it was sorted out of."""
    indices: Queries
    """Row and position of each token in the rectangular batch."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], tokens: int, longest: int) -> PackedBatch:
        """Sequences of these lengths, which have so many tokens in all, and `longest` at most."""
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        numbers = torch.arange(lengths.numel(), device=lengths.device)
        sequences = torch.repeat_interleave(numbers, lengths, output_size=tokens)
        positions = torch.arange(tokens, device=lengths.device) - cu_seqlens[sequences]
        return PackedBatch(cu_seqlens, longest, sequences, positions, Queries(sequences, positions))

    @staticmethod
    def of_rows(tokens: Int[Tensor, "B L"], layout: Layout) -> PackedBatch:
        """All tokens of a rectangular batch: its rows are the sequences unless a layout cuts it."""
        indices, (count, length) = places_of(None, tokens), tokens.shape
        if not isinstance(layout, PackedLayout):
            ends = torch.arange(count + 1, device=tokens.device, dtype=torch.int32) * length
            return PackedBatch(ends, length, indices.rows, indices.positions, indices)
        layout.check(tokens)
        sequences = layout.sequence_ids()
        return PackedBatch(layout.cu_seqlens_q, length, sequences, layout.position_ids(), indices)

    @staticmethod
    def sort(
        indices: Queries,
        position_ids: Int[Tensor, "N"],
        sequence_ids: Int[Tensor, "N"],
        count: int,
        longest: int,
    ) -> tuple[PackedBatch, Int64[Tensor, "N"]]:
        """Sort tokens by the sequence that each belongs to, one of `count`.

        Also returns the order: which of the given tokens stands where (see `unsorted`).
        """
        order = sequence_ids.argsort(stable=True)
        ones = torch.ones_like(sequence_ids)
        lengths = sequence_ids.new_zeros(count).index_add(0, sequence_ids, ones)
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        # The exact length would have to be waited for on a GPU; that of a row will do.
        longest = int(lengths.max()) if readable(sequence_ids) else longest
        placed = Queries(indices.rows[order], indices.positions[order])
        positions, sequences = position_ids[order], sequence_ids[order]
        return PackedBatch(cu_seqlens, longest, sequences, positions, placed), order

    @property
    def count(self) -> int:
        """How many sequences there are, empty ones included."""
        return self.cu_seqlens.numel() - 1

    def row_of_sequence(self) -> Int[Tensor, "S"]:
        """The row that each sequence begins in; of an empty one that of some other."""
        if not len(self.indices.rows):
            return self.cu_seqlens[:-1].long()
        first = self.cu_seqlens[:-1].clamp(max=len(self.indices.rows) - 1)
        return self.indices.rows[first]

    def reading(self, keys: PackedBatch) -> PackedLayout:
        """Our tokens as queries that read the keys of the sequence with the same number."""
        return PackedLayout(self.cu_seqlens, keys.cu_seqlens, self.max_seqlen, keys.max_seqlen)

    def with_registers(
        self, each: int, rows: Int[Tensor, "S"]
    ) -> tuple[PackedBatch, Int64[Tensor, "M"]]:
        """So many registers after each sequence, of which these are the rows.

        Also returns the order: which token or register stands where, registers counted after the
        tokens. They have no position, and are of their sequence's row.
        """
        numbers = torch.arange(self.count + 1, device=self.cu_seqlens.device)
        added = numbers[:-1].repeat_interleave(each)
        sequences = torch.cat([self.sequence_ids, added])
        order = sequences.argsort(stable=True)
        nowhere = torch.full_like(added, NOWHERE)
        positions = torch.cat([self.position_ids, nowhere])[order]
        joint = torch.cat([self.indices.rows, rows.repeat_interleave(each)])[order]
        return (
            PackedBatch(
                self.cu_seqlens + (each * numbers).to(torch.int32),
                self.max_seqlen + each,
                sequences[order],
                positions,
                Queries(joint, positions),
            ),
            order,
        )


@dataclass(frozen=True)
class PackedTokens(PackedBatch):
    """A packed batch that has its tokens with it: texts that grow, in no rectangle."""

    tokens: Int64[Tensor, "N"]

    @staticmethod
    def of(tokens: Int64[Tensor, "B L"], held: Bool[Tensor, "B L"]) -> PackedTokens:
        """The tokens of a rectangular batch that are held, in their order."""
        indices = Queries(*held.nonzero(as_tuple=True))
        cu_seqlens = F.pad(held.sum(-1).cumsum(0), (1, 0)).to(torch.int32)
        numbers = torch.arange(indices.rows.numel(), device=tokens.device)
        positions = numbers - cu_seqlens[indices.rows]
        length = tokens.shape[1]
        kept = tokens[indices.rows, indices.positions]
        return PackedTokens(cu_seqlens, length, indices.rows, positions, indices, tokens=kept)

    @staticmethod
    def of_texts(
        tokens: Int64[Tensor, "N"], lengths: Int[Tensor, "B"], longest: int | None = None
    ) -> PackedTokens:
        """Texts of these lengths that are packed already. A GPU is waited for without `longest`."""
        if longest is None:
            longest = int(lengths.max()) if lengths.numel() else 0
        packed = PackedBatch.of_lengths(lengths, tokens.numel(), longest)
        return PackedTokens(**vars(packed), tokens=tokens)

    @property
    def lengths(self) -> Int64[Tensor, "B"]:
        """How many tokens each text has."""
        return self.cu_seqlens.diff().long()

    def padded(self, fill: int, width: int | None = None) -> Int64[Tensor, "B L"]:
        """A rectangular batch, filled up on the right; as wide as the longest unless told."""
        if width is None:
            width = int(self.lengths.max()) if self.count else 0
        table = self.tokens.new_full((self.count, width), fill)
        table[self.sequence_ids, self.position_ids] = self.tokens
        return table

    def with_ends(self, end: int) -> tuple[PackedTokens, Int64[Tensor, "N"], Int64[Tensor, "B"]]:
        """One more token after each sequence; where the old tokens are now, and where the ends."""
        packed, places, ends = self._longer_by_one
        tokens = self.tokens.new_full((packed.sequence_ids.numel(),), end)
        tokens = tokens.index_copy(0, places, self.tokens)
        return PackedTokens(**vars(packed), tokens=tokens), places, ends

    @functools.cached_property
    def _longer_by_one(self) -> tuple[PackedBatch, Int64[Tensor, "N"], Int64[Tensor, "B"]]:
        """The same for whatever token: found once, as a loss wants it several times."""
        count, size = self.count, self.tokens.numel()
        numbers = torch.arange(size + count + 1, device=self.tokens.device)
        places = numbers[:size] + self.sequence_ids
        ends = self.cu_seqlens[1:] + numbers[:count]
        sequences = numbers.new_empty(size + count).index_copy(0, places, self.sequence_ids)
        sequences = sequences.index_copy(0, ends, numbers[:count])
        cu_seqlens = (self.cu_seqlens + numbers[: count + 1]).to(torch.int32)
        positions = numbers[:-1] - cu_seqlens[sequences]
        indices, longest = Queries(sequences, positions), self.max_seqlen + 1
        return PackedBatch(cu_seqlens, longest, sequences, positions, indices), places, ends


def unsorted(x: Shaped[Tensor, "N *w"], order: Int64[Tensor, "N"]) -> Shaped[Tensor, "N *w"]:
    """What was computed for sorted tokens, in the order in which they were given."""
    return torch.empty_like(x).index_copy(0, order, x)


def places_of(real: Bool[Tensor, "B L"] | None, like: Int[Tensor, "B L"]) -> Queries:
    """Row and position of every token, or of the real ones."""
    if real is not None:
        return Queries(*real.nonzero(as_tuple=True))
    flat = torch.arange(like.numel(), device=like.device)
    return Queries(flat // like.shape[1], flat % like.shape[1])


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return name_of_before(__name__, name)
