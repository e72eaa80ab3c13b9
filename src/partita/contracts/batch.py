"""A batch: some rows of tokens, with all that a loss has to know about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.layouts import DENSE, Layout, PackedLayout


@dataclass(frozen=True)
class Batch:
    """Some rows of a global batch."""

    tokens: Int64[Tensor, "B L"]
    valid: Bool[Tensor, "B L"] | None
    """Which tokens are real; None if all are."""
    ends: Bool[Tensor, "B L"] | None
    """The last tokens of documents, if a document shall read itself alone; None otherwise."""
    rows: Int64[Tensor, "B"]
    """The numbers of these rows in the global batch."""
    size: int
    """Rows of the global batch."""
    count: int
    """Real tokens of the global batch: what its loss is divided by."""
    starts: list[int]
    """Where each row begins in the corpus, counted in tokens."""
    label: Int64[Tensor, "B"] | None = None
    """The class of each row's document, if documents have one."""

    def layout(self) -> Layout:
        """Which tokens read which: everything in the row, or the tokens of the same document."""
        if self.ends is None:
            return DENSE
        layout = PackedLayout.of_documents(self.ends, longest=self.ends.shape[1])
        return layout.to(self.tokens.device)

    def to(self, device: torch.device) -> Batch:
        """The same on another device; the ends stay, a layout is made without waiting for a GPU."""
        moved = self._with(lambda tensor: tensor.to(device, non_blocking=True))
        return replace(moved, ends=self.ends)

    def pinned(self) -> Batch:
        """The same in memory that a GPU can fetch from by itself."""
        return self._with(Tensor.pin_memory)

    def split(self, most: int | None) -> list[Batch]:
        """The same rows in parts of at most `most`."""
        size = len(self.rows)
        most = size if most is None else most
        return [self._slice(slice(low, low + most)) for low in range(0, size, most)]

    def _slice(self, part: slice) -> Batch:
        return replace(self._with(lambda tensor: tensor[part]), starts=self.starts[part])

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            tokens=change(self.tokens),
            valid=None if self.valid is None else change(self.valid),
            ends=None if self.ends is None else change(self.ends),
            rows=change(self.rows),
            label=None if self.label is None else change(self.label),
        )
