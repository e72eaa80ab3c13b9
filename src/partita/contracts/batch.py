"""A batch: some rows of tokens, with all that a loss has to know about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.layouts import DENSE, Layout, PackedLayout
from partita.errors import require


@dataclass(frozen=True)
class Batch:
    """Some rows of a global batch. `Batch.of(tokens)` makes one of tokens alone."""

    tokens: Int64[Tensor, "B L"]
    is_token: Bool[Tensor, "B L"] | None
    """True where there is a real token and not padding; None if there is no padding."""
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
    given_layout: Layout | None = None
    """Which tokens read which, where `ends` do not say so."""

    @staticmethod
    def of(
        tokens: Int64[Tensor, "B L"],
        *,
        is_token: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        ends: Bool[Tensor, "B L"] | None = None,
        layout: Layout | None = None,
        rows: Int64[Tensor, "B"] | None = None,
        size: int | None = None,
        count: int | None = None,
        starts: list[int] | None = None,
    ) -> Batch:
        """A batch of tokens: all real, the first rows of a global batch that is no larger.

        `is_token` says where there is a real token and not padding, `ends` where a document ends
        that shall read itself alone; `layout` says what reads what in another way.
        """
        _check_tokens(tokens)
        if is_token is not None:
            _check_marks(is_token, tokens, "is_token")
        if ends is not None:
            _check_marks(ends, tokens, "ends")
        problem, remedy = "ends and layout both say which tokens read which", "give one of the two"
        require(ends is None or layout is None, "layout", problem, remedy)
        if count is None:
            count = tokens.numel() if is_token is None else int(is_token.sum())
        return Batch(
            tokens,
            is_token,
            ends,
            torch.arange(len(tokens), device=tokens.device) if rows is None else rows,
            len(tokens) if size is None else size,
            count,
            [] if starts is None else starts,
            label,
            layout,
        )

    @cached_property
    def real(self) -> Bool[Tensor, "B L"]:
        """The real tokens, also where all are."""
        if self.is_token is None:
            return torch.ones_like(self.tokens, dtype=torch.bool)
        return self.is_token

    def padded_with(self, token: int) -> Batch:
        """The same with one token in place of padding, which may hold anything."""
        if self.is_token is None:
            return self
        return replace(self, tokens=torch.where(self.is_token, self.tokens, token))

    def layout(self) -> Layout:
        """Which tokens read which: everything in the row, or the tokens of the same document."""
        return self._layout

    @cached_property
    def _layout(self) -> Layout:
        if self.given_layout is not None:
            return self.given_layout
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
        if most >= size:
            return [self]
        whole = self.given_layout is None or self.given_layout is DENSE
        require(whole, "layout", "is one of all rows and cannot be split", "give `ends` instead")
        return [self._slice(slice(low, low + most)) for low in range(0, size, most)]

    def _slice(self, part: slice) -> Batch:
        return replace(self._with(lambda tensor: tensor[part]), starts=self.starts[part])

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            tokens=change(self.tokens),
            is_token=None if self.is_token is None else change(self.is_token),
            ends=None if self.ends is None else change(self.ends),
            rows=change(self.rows),
            label=None if self.label is None else change(self.label),
        )


def _check_tokens(tokens: Tensor) -> None:
    """Refuse what is no rows of tokens."""
    require(isinstance(tokens, Tensor), "tokens", f"must be a tensor, got {type(tokens).__name__}")
    require(tokens.ndim == 2, "tokens", f"must be [sequences, length], got {list(tokens.shape)}")
    require(tokens.dtype == torch.int64, "tokens", f"must be int64, got {tokens.dtype}")
    require(tokens.numel() > 0, "tokens", "is empty")


def _check_marks(marks: Tensor, tokens: Tensor, argument: str) -> None:
    """Refuse what does not say yes or no of each token."""
    boolean = isinstance(marks, Tensor) and marks.dtype == torch.bool
    require(boolean, argument, "must be a tensor of booleans")
    problem = f"has shape {list(marks.shape)}, the tokens have {list(tokens.shape)}"
    require(marks.shape == tokens.shape, argument, problem)
