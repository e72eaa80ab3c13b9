"""Texts of growing length: the state of samplers of flexible length.

A draft is a tensor of tokens [B, L] with a length for each row, and a flag for each gap that says
whether masks may be inserted there. Gap i is before token i; gap `length` is at the end. Revealed
tokens never change; masks are inserted around them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.contracts.packed import PackedBatch, PackedTokens
from partita.contracts.shapes import Marks, Tokens
from partita.errors import require
from partita.samplers.state import SamplerState


@dataclass
class Draft:
    """B texts that are being written."""

    tokens: Tokens
    lengths: Int64[Tensor, "B"]
    open: Bool[Tensor, "B G"]
    """The gaps where masks may be inserted."""
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
    def there(self) -> Marks:
        """The positions that hold a token or a mask, and not padding."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @property
    def hidden(self) -> Marks:
        """The positions of the masks."""
        return self.there & (self.tokens == self.mask_id)

    @property
    def insertable(self) -> Bool[Tensor, "B G"]:
        """The open gaps of each text."""
        gaps = torch.arange(self.open.shape[1], device=self.open.device)
        return self.open & (gaps <= self.lengths[:, None])

    def text(self) -> PackedTokens:
        """The texts as packed tokens."""
        return PackedTokens.of(self.tokens, self.there)

    def by_gap(self, packed: Tensor) -> Tensor:
        """One number for each gap of each text, as a tensor [B, G]; 0 beyond the end of a text."""
        table = packed.new_zeros(self.open.shape)
        gaps = PackedBatch.of_lengths(self.lengths + 1, len(packed), table.shape[1])
        table[gaps.indices] = packed
        return table

    def write(self, chosen: Marks, tokens: Tokens) -> None:
        """Replace the chosen masks by tokens."""
        self.tokens = torch.where(chosen & self.hidden, tokens, self.tokens)

    def insert(self, counts: Int64[Tensor, "B G"]) -> Int64[Tensor, "B G"]:
        """Insert `counts` masks into the gaps, and return the new indices of old tokens and ends.

        The gaps around a new mask are open. Counts of closed gaps are ignored.
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
        gaps = torch.arange(self.open.shape[1], device=tokens.device)
        rows, old = (gaps <= self.lengths[:, None]).nonzero(as_tuple=True)
        opened[rows, moved[rows, old]] = self.open[rows, old]
        self.tokens, self.lengths, self.open = tokens, lengths, opened
        return moved

    def state(self) -> SamplerState:
        """The state that a callback receives: masks are hidden positions."""
        hidden = self.hidden
        return SamplerState(self.tokens, ~hidden & self.there, hidden, lengths=self.lengths)


def fitting(
    counts: Int64[Tensor, "B G"], room: Int64[Tensor, "B"], u: Float64[Tensor, "B N"]
) -> Int64[Tensor, "B G"]:
    """Reduce insertion counts to what there is room for; which masks are dropped is random.

    `u` has a uniform number for each of a row's masks, in the order of their gaps.
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
