"""Kinds of data: how text, images or anything else become rows of tokens.

A kind of data is an object in `KINDS`; the name of a recipe's tokenizer decides which.
`partita.modalities` has what the command line does with models of a kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from partita.data.any_tokenizer import AnyTokenizer
from partita.data.prepared import PrepareCallback, Prepared
from partita.registry import Registry


@runtime_checkable
class DataSettings(Protocol):
    """The section `data` of a recipe."""

    if TYPE_CHECKING:

        @property
        def path(self) -> str: ...
        @property
        def field(self) -> str: ...
        @property
        def documents(self) -> str: ...
        @property
        def label(self) -> str | None: ...
        @property
        def rows(self) -> str | None: ...
        @property
        def validation_fraction(self) -> float: ...
        @property
        def size(self) -> int | None: ...
        @property
        def color(self) -> bool | None: ...
        @property
        def cache(self) -> str: ...


@runtime_checkable
class TokenizerSettings(Protocol):
    """The section `tokenizer` of a recipe."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...
        @property
        def vocab_size(self) -> int: ...
        @property
        def levels(self) -> int | None: ...


class DataKind(ABC):
    """A kind of data: how its files become rows of tokens."""

    name: ClassVar[str]
    """What the data are, in a word: "text", "images"."""
    each: ClassVar[str] = "document"
    """What one of them is called."""
    unit: ClassVar[str] = "characters"
    """What is counted while they are read."""
    rows: ClassVar[str | None] = None
    """The one kind of rows that such data have; None where a recipe chooses."""
    labels_are_learned: ClassVar[bool] = True
    """Whether a network must know the classes of data that have some."""

    @abstractmethod
    def claims(self, tokenizer: str) -> bool:
        """Whether a tokenizer with this name is for such data."""

    def remedy(self, path: str) -> str | None:  # noqa: ARG002 - of no kind in particular
        """How to name a tokenizer, for data that can only be of this kind; None for others."""
        return None

    @abstractmethod
    def check(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:
        """Refuse data that do not exist."""

    @abstractmethod
    def check_options(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:
        """Refuse options of a recipe that such data do not have."""

    @abstractmethod
    def prepare(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        given: AnyTokenizer | None = None,
        callback: PrepareCallback | None = None,
    ) -> Prepared:
        """The data as tokens: from the cache if nothing changed, made now otherwise.

        A `given` tokenizer, that of a model which is trained further, takes the place of the one
        that the settings name.
        """

    @abstractmethod
    def check_network(self, tokenizer: AnyTokenizer, length: int, grid: int) -> None:
        """Refuse a network whose rows, or the columns of whose grid, do not fit."""

    def separator(self, data: DataSettings, tokenizer: AnyTokenizer) -> int | None:  # noqa: ARG002
        """How many tokens stand between documents; None where they do not follow each other."""
        return None


KINDS: Registry[DataKind] = Registry("data")
USUAL = "text"  # for tokenizers that no kind claims: files, and names on the hub


def kind_of(tokenizer: AnyTokenizer) -> DataKind:
    """The kind of data that a tokenizer is for."""
    return KINDS[tokenizer.data]


def kind_named(tokenizer: str) -> DataKind:
    """The kind of data that the name of a tokenizer stands for."""
    claimed = (kind for kind in (KINDS[name] for name in KINDS) if kind.claims(tokenizer))
    return next(claimed, KINDS[USUAL])
