"""What the library needs of a tokenizer of any data, and the registry that makes one of its files.

A tokenizer turns data (texts, images, numbers) into rows of ids from 0 to `vocab_size - 1`, and
back. How it encodes and decodes is between it and the models of its data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from partita.errors import InputError
from partita.registry import Registry


class AnyTokenizer(ABC):
    """Data to ids and back. The mask id is not the tokenizer's: it is `vocab_size`."""

    data: ClassVar[str]
    """The kind of data that it is for: "text", "images", or another name in `KINDS`."""

    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int:
            """Number of ids: one more than the largest."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything but the tensors that makes this tokenizer what it is, as JSON.

        Under "kind" is the name that its class is registered by in `TOKENIZERS`.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that belong to it, if it has some."""
        return {}


class Restorable(Protocol):
    """A class of tokenizers that are made of what they were saved as, their kind apart."""

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AnyTokenizer: ...


TOKENIZERS: Registry[type[Restorable]] = Registry("tokenizer")


def from_files(description: object, tensors: Mapping[str, Tensor]) -> AnyTokenizer:
    """The tokenizer that a description and tensors make; what is in them is not trusted."""
    if not isinstance(description, dict):
        got = type(description).__name__
        raise InputError("tokenizer", f"its description must be a dict, got {got}")
    kind = description.get("kind")
    if kind not in TOKENIZERS:
        known = f"known: {', '.join(TOKENIZERS)}"
        raise InputError("tokenizer", f"unknown kind {kind!r:.200}", known)
    rest = {key: value for key, value in description.items() if key != "kind"}
    return TOKENIZERS[str(kind)].restore(rest, tensors)
