"""The base class of tokenizers of any data, and the registry that restores saved ones.

A tokenizer turns data (texts, images, numbers) into rows of ids from 0 to `vocab_size - 1`, and
back. How it encodes and decodes depends on its kind of data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from partita.errors import InputError, require
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
        """Everything that defines this tokenizer but its tensors, as JSON.

        "kind" is the name of its class in `TOKENIZERS`.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that belong to it, if it has some."""
        return {}

    @staticmethod
    @abstractmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AnyTokenizer:
        """The tokenizer of a description without its "kind"."""


TOKENIZERS: Registry[type[AnyTokenizer]] = Registry("tokenizer")


def from_files(description: object, tensors: Mapping[str, Tensor]) -> AnyTokenizer:
    """The tokenizer of a description and tensors, which are not trusted."""
    if not isinstance(description, dict):
        got = type(description).__name__
        raise InputError("tokenizer", f"its description must be a dict, got {got}")
    kind = description.get("kind")
    known = f"known: {', '.join(TOKENIZERS)}"
    require(kind in TOKENIZERS, "tokenizer", f"unknown kind {kind!r:.200}", known)
    rest = {key: value for key, value in description.items() if key != "kind"}
    return TOKENIZERS[str(kind)].restore(rest, tensors)
