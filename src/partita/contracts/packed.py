"""Packed batches: sequences of different lengths, concatenated without padding.

The names are those of flash-attention. For example, a batch of two rows of four positions, with
three real tokens in the first row and two in the second:

    >>> import torch
    >>> rows = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    >>> real = torch.tensor([[True, True, True, False], [True, True, False, False]])
    >>> batch = PackedTokens.of(rows, real)
    >>> batch.tokens
    tensor([5, 6, 7, 8, 9])
    >>> batch.cu_seqlens  # row 0 has the packed tokens 0, 1, 2, row 1 the tokens 3, 4
    tensor([0, 3, 5], dtype=torch.int32)
    >>> batch.indices.rows, batch.indices.positions  # row and position of each in the batch
    (tensor([0, 0, 0, 1, 1]), tensor([0, 1, 2, 0, 1]))
    >>> batch.position_ids  # position of each in its sequence
    tensor([0, 1, 2, 0, 1])

A partition becomes a permutation. Sorted by group, the tokens of a row are two consecutive
sequences: attention inside a group is attention inside a sequence, and attention across groups is
attention of one sequence's queries to the other's keys. No L x L mask is needed. In the same rows,
let the tokens 6 and 8 be group 1, which gives the sequences (5, 7), (6), (9), (8):

    >>> groups = torch.tensor([0, 1, 0, 1, 0])
    >>> numbers = 2 * batch.sequence_ids + groups
    >>> own, order = PackedBatch.sort(batch.indices, batch.position_ids, numbers, 4, 4)
    >>> batch.tokens[order]
    tensor([5, 7, 6, 9, 8])
    >>> own.cu_seqlens, own.max_seqlen
    (tensor([0, 2, 3, 4, 5], dtype=torch.int32), 2)
    >>> other, order = PackedBatch.sort(batch.indices, batch.position_ids, numbers ^ 1, 4, 4)
    >>> batch.tokens[order]  # the queries: sequence i attends to the keys of sequence i above
    tensor([6, 5, 7, 8, 9])
    >>> layout = other.reading(own)
    >>> layout.cu_seqlens_q, layout.cu_seqlens_k
    (tensor([0, 1, 3, 4, 5], dtype=torch.int32), tensor([0, 2, 3, 4, 5], dtype=torch.int32))
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32, Int64, Shaped
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Layout, PackedLayout, Queries
from partita.devices import readable
from partita.moved import offer_old_names

NOWHERE = 0
"""The position of tokens without one: rotary attention rotates nothing there."""


@dataclass(frozen=True)
class PackedBatch:
    """The sequence of each packed token, and its index in the rectangular batch."""

    cu_seqlens: Int32[Tensor, "offsets"]
    """The start of each sequence, and the end of the last one."""
    max_seqlen: int
    """An upper bound on the length of sequences."""
    sequence_ids: Int[Tensor, "N"]
    """The sequence of each token."""
    position_ids: Int[Tensor, "N"]
    """The position of each token in its sequence, or in its document before sorting."""
    indices: Queries
    """Row and position of each token in the rectangular batch."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], tokens: int, longest: int) -> PackedBatch:
        """Sequences of these lengths; `tokens` is their sum, `longest` an upper bound."""
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        numbers = torch.arange(lengths.numel(), device=lengths.device)
        sequences = torch.repeat_interleave(numbers, lengths, output_size=tokens)
        positions = torch.arange(tokens, device=lengths.device) - cu_seqlens[sequences]
        return PackedBatch(cu_seqlens, longest, sequences, positions, Queries(sequences, positions))

    @staticmethod
    def of_rows(tokens: Int[Tensor, "B L"], layout: Layout) -> PackedBatch:
        """All tokens of a rectangular batch; its sequences are its rows, or those of the layout."""
        indices, (count, length) = indices_of(None, tokens), tokens.shape
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
        """Sort tokens by their sequence ids, which are below `count`.

        Also returns the order: the index of the given token at each sorted one (see `unsorted`).
        """
        order = sequence_ids.argsort(stable=True)
        ones = torch.ones_like(sequence_ids)
        lengths = sequence_ids.new_zeros(count).index_add(0, sequence_ids, ones)
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        # Reading the exact maximum would wait for the GPU; the upper bound suffices.
        longest = int(lengths.max()) if readable(sequence_ids) else longest
        placed = Queries(indices.rows[order], indices.positions[order])
        positions, sequences = position_ids[order], sequence_ids[order]
        return PackedBatch(cu_seqlens, longest, sequences, positions, placed), order

    @property
    def count(self) -> int:
        """Number of sequences, empty ones included."""
        return self.cu_seqlens.numel() - 1

    def row_of_sequence(self) -> Int[Tensor, "S"]:
        """The row in which each sequence begins; for an empty sequence, some other row."""
        if not len(self.indices.rows):
            return self.cu_seqlens[:-1].long()
        first = self.cu_seqlens[:-1].clamp(max=len(self.indices.rows) - 1)
        return self.indices.rows[first]

    def reading(self, keys: PackedBatch) -> PackedLayout:
        """The layout in which sequence i of these queries attends to sequence i of `keys`."""
        return PackedLayout(self.cu_seqlens, keys.cu_seqlens, self.max_seqlen, keys.max_seqlen)

    def with_registers(
        self, each: int, rows: Int[Tensor, "S"]
    ) -> tuple[PackedBatch, Int64[Tensor, "M"]]:
        """Append `each` registers to each sequence; `rows` are the rows of the sequences.

        Also returns the order: the index of the token or register at each new slot, with registers
        numbered after the tokens. Registers have no position, and belong to their sequence's row.
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
    """A packed batch together with its tokens, for texts of any length."""

    tokens: Int64[Tensor, "N"]

    @staticmethod
    def of(tokens: Int64[Tensor, "B L"], held: Bool[Tensor, "B L"]) -> PackedTokens:
        """The tokens of a rectangular batch where `held` is true, in their order."""
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
        """Already packed texts of these lengths. Without `longest`, this waits for the GPU."""
        if longest is None:
            longest = int(lengths.max()) if lengths.numel() else 0
        packed = PackedBatch.of_lengths(lengths, tokens.numel(), longest)
        return PackedTokens(**vars(packed), tokens=tokens)

    @property
    def lengths(self) -> Int64[Tensor, "B"]:
        """Number of tokens of each text."""
        return self.cu_seqlens.diff().long()

    def padded(self, fill: int, width: int | None = None) -> Int64[Tensor, "B L"]:
        """A rectangular batch, padded on the right; by default as wide as the longest text."""
        if width is None:
            width = int(self.lengths.max()) if self.count else 0
        table = self.tokens.new_full((self.count, width), fill)
        table[self.sequence_ids, self.position_ids] = self.tokens
        return table

    def with_ends(self, end: int) -> tuple[PackedTokens, Int64[Tensor, "N"], Int64[Tensor, "B"]]:
        """Append the token `end` to each sequence; also the new indices of tokens and of ends."""
        packed, indices, ends = self._longer_by_one
        tokens = self.tokens.new_full((packed.sequence_ids.numel(),), end)
        tokens = tokens.index_copy(0, indices, self.tokens)
        return PackedTokens(**vars(packed), tokens=tokens), indices, ends

    @functools.cached_property
    def _longer_by_one(self) -> tuple[PackedBatch, Int64[Tensor, "N"], Int64[Tensor, "B"]]:
        """The same without the tokens; cached, as a loss needs it several times."""
        count, size = self.count, self.tokens.numel()
        numbers = torch.arange(size + count + 1, device=self.tokens.device)
        moved = numbers[:size] + self.sequence_ids
        ends = self.cu_seqlens[1:] + numbers[:count]
        sequences = numbers.new_empty(size + count).index_copy(0, moved, self.sequence_ids)
        sequences = sequences.index_copy(0, ends, numbers[:count])
        cu_seqlens = (self.cu_seqlens + numbers[: count + 1]).to(torch.int32)
        positions = numbers[:-1] - cu_seqlens[sequences]
        indices, longest = Queries(sequences, positions), self.max_seqlen + 1
        return PackedBatch(cu_seqlens, longest, sequences, positions, indices), moved, ends


def unsorted(x: Shaped[Tensor, "N *w"], order: Int64[Tensor, "N"]) -> Shaped[Tensor, "N *w"]:
    """Values of sorted tokens, put back in the original order."""
    return torch.empty_like(x).index_copy(0, order, x)


def indices_of(real: Bool[Tensor, "B L"] | None, like: Int[Tensor, "B L"]) -> Queries:
    """Row and position of every token, or of the real ones."""
    if real is not None:
        return Queries(*real.nonzero(as_tuple=True))
    flat = torch.arange(like.numel(), device=like.device)
    return Queries(flat // like.shape[1], flat % like.shape[1])


offer_old_names(__name__)
