"""A batch: rows of tokens, with everything that a loss needs to know about them."""

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
    """Some rows of a global batch. `Batch.of(tokens)` makes one from tokens only."""

    tokens: Int64[Tensor, "B L"]
    is_token: Bool[Tensor, "B L"] | None
    """True for real tokens, false for padding; None if there is no padding."""
    ends: Bool[Tensor, "B L"] | None
    """True at the last token of each document, if documents attend only to themselves; or None."""
    rows: Int64[Tensor, "B"]
    """The indices of these rows in the global batch."""
    size: int
    """Number of rows of the global batch."""
    count: int
    """Number of real tokens of the global batch, by which its loss is divided."""
    starts: list[int]
    """The offset of each row in the corpus, in tokens."""
    label: Int64[Tensor, "B"] | None = None
    """The class of each row's document, if documents have one."""
    given_layout: Layout | None = None
    """Which tokens attend to which, if not defined by `ends`."""

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
        """A batch of tokens; by default all are real, and it is the whole global batch.

        `is_token` is true for real tokens and false for padding. `ends` marks the last token of
        each document, so that documents attend only to themselves; `layout` is an alternative to
        `ends`.
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
        """`is_token`, with a mask of true values if there is no padding."""
        if self.is_token is None:
            return torch.ones_like(self.tokens, dtype=torch.bool)
        return self.is_token

    def padded_with(self, token: int) -> Batch:
        """The same batch with padding, which may hold any id, replaced by `token`."""
        if self.is_token is None:
            return self
        return replace(self, tokens=torch.where(self.is_token, self.tokens, token))

    def layout(self) -> Layout:
        """Which tokens attend to which: all of the row, or those of the same document."""
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
        """The same on another device; `ends` stay, so that a layout is built without a GPU sync."""
        moved = self._with(lambda tensor: tensor.to(device, non_blocking=True))
        return replace(moved, ends=self.ends)

    def pinned(self) -> Batch:
        """The same in pinned memory."""
        return self._with(Tensor.pin_memory)

    def split(self, most: int | None) -> list[Batch]:
        """Split into batches of at most `most` rows."""
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
    """Refuse anything but a non-empty int64 tensor [B, L]."""
    require(isinstance(tokens, Tensor), "tokens", f"must be a tensor, got {type(tokens).__name__}")
    require(tokens.ndim == 2, "tokens", f"must be [sequences, length], got {list(tokens.shape)}")
    require(tokens.dtype == torch.int64, "tokens", f"must be int64, got {tokens.dtype}")
    require(tokens.numel() > 0, "tokens", "is empty")


def _check_marks(marks: Tensor, tokens: Tensor, argument: str) -> None:
    """Refuse anything but a boolean tensor in the shape of the tokens."""
    boolean = isinstance(marks, Tensor) and marks.dtype == torch.bool
    require(boolean, argument, "must be a tensor of booleans")
    problem = f"has shape {list(marks.shape)}, the tokens have {list(tokens.shape)}"
    require(marks.shape == tokens.shape, argument, problem)
