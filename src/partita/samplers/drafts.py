"""Texts that grow: what samplers of flexible length work on.

A draft is a rectangle of tokens with a length for each row, and says of every gap whether masks may
be inserted there. Gap i is before token i, gap `length` at the end. What is not a mask is never
changed, only surrounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.contracts.packed import PackedBatch, PackedTokens
from partita.errors import require
from partita.samplers.state import SamplerState


@dataclass
class Draft:
    """B texts in the making."""

    tokens: Int64[Tensor, "B L"]
    lengths: Int64[Tensor, "B"]
    open: Bool[Tensor, "B G"]
    """Where masks may be inserted."""
    mask_id: int
    end_id: int

    @staticmethod
    def of(state: SamplerState, mask_id: int, end_id: int) -> Draft:
        """A prompt's known tokens, masks for its unknown ones, and its open gaps."""
        ended = bool((state.revealed & (state.tokens == end_id)).any())
        problem = f"holds the end marker ({end_id}) as if it were a real token"
        require(not ended, "prompt", problem, "end it there")
        batch, width = state.tokens.shape
        lengths = torch.full((batch,), width, device=state.tokens.device)
        tokens = torch.where(state.revealed, state.tokens, mask_id)
        return Draft(tokens, lengths, state.open_gaps(), mask_id, end_id)

    @property
    def there(self) -> Bool[Tensor, "B L"]:
        """Which places hold a token or a mask."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @property
    def hidden(self) -> Bool[Tensor, "B L"]:
        """The masks."""
        return self.there & (self.tokens == self.mask_id)

    @property
    def insertable(self) -> Bool[Tensor, "B G"]:
        """The open gaps of each text."""
        places = torch.arange(self.open.shape[1], device=self.open.device)
        return self.open & (places <= self.lengths[:, None])

    def text(self) -> PackedTokens:
        """The same, packed."""
        return PackedTokens.of(self.tokens, self.there)

    def by_gap(self, packed: Tensor) -> Tensor:
        """One number for each gap of each text, as a rectangle; 0 beyond a text's end."""
        table = packed.new_zeros(self.open.shape)
        gaps = PackedBatch.of_lengths(self.lengths + 1, len(packed), table.shape[1])
        table[gaps.indices] = packed
        return table

    def write(self, places: Bool[Tensor, "B L"], tokens: Int64[Tensor, "B L"]) -> None:
        """Reveal masks."""
        self.tokens = torch.where(places & self.hidden, tokens, self.tokens)

    def insert(self, counts: Int64[Tensor, "B G"]) -> Int64[Tensor, "B G"]:
        """Put so many masks into each gap, and return where old tokens and ends are now.

        Around a new mask gaps are open. Counts in closed gaps are left out.
        """
        counts = torch.where(self.insertable, counts, 0)
        shift = counts.cumsum(-1)
        moved = torch.arange(counts.shape[1], device=counts.device) + shift
        lengths = self.lengths + shift[:, -1]
        width = int(lengths.max()) if lengths.numel() else 0
        rows, old = self.there.nonzero(as_tuple=True)
        tokens = self.tokens.new_full((len(lengths), width), self.end_id)
        tokens[torch.arange(width, device=tokens.device) < lengths[:, None]] = self.mask_id
        tokens[rows, moved[rows, old]] = self.tokens[rows, old]
        opened = torch.ones(len(lengths), width + 1, dtype=torch.bool, device=tokens.device)
        places = torch.arange(self.open.shape[1], device=tokens.device)
        rows, old = (places <= self.lengths[:, None]).nonzero(as_tuple=True)
        opened[rows, moved[rows, old]] = self.open[rows, old]
        self.tokens, self.lengths, self.open = tokens, lengths, opened
        return moved

    def state(self) -> SamplerState:
        """What a callback sees: masks are hidden, and rows end where their texts do."""
        hidden = self.hidden
        return SamplerState(self.tokens, ~hidden & self.there, hidden, lengths=self.lengths)


def fitting(
    counts: Int64[Tensor, "B G"], room: Int64[Tensor, "B"], u: Float64[Tensor, "B N"]
) -> Int64[Tensor, "B G"]:
    """Of the masks that are to be inserted, as many as there is room for, chosen at random.

    `u` has a number for each of a row's masks, in the order of their gaps.
    """
    most = u.shape[1]
    gap = torch.repeat_interleave(
        torch.arange(counts.shape[1], device=counts.device).repeat(len(counts)), counts.flatten()
    )
    total = counts.sum(-1)
    rows, which = PackedBatch.of_lengths(total, len(gap), most).indices
    keys = u.masked_fill(torch.arange(most, device=u.device) >= total[:, None], torch.inf)
    kept = keys.argsort(-1).argsort(-1) < room.clamp(min=0)[:, None]
    taken = kept[rows, which].long()
    return torch.zeros_like(counts).index_put((rows, gap), taken, accumulate=True)
