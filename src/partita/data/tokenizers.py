"""Tokenizers: text to ids and back. The mask (or start) id is not theirs: it is `vocab_size`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from partita.errors import require, require_int


class Tokenizer(Protocol):
    """What the rest of the library needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text; ids that are no token are left out."""
        ...


class ByteTokenizer:
    """UTF-8 bytes: 256 ids, no training, every text."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class BPETokenizer:
    """Byte-level byte-pair encoding, trained on the spot; every text survives the round trip."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        require(
            isinstance(backend, tokenizers.Tokenizer),
            "backend",
            f"must be a tokenizers.Tokenizer, got {type(backend).__name__}",
            "BPETokenizer.train(texts, vocab_size) makes one",
        )
        self.backend = backend

    @staticmethod
    def train(texts: str | Iterable[str], vocab_size: int) -> BPETokenizer:
        """Learn merges from a text or several. Little text may give fewer tokens than asked."""
        require_int(vocab_size, "vocab_size", 256)
        texts = [texts] if isinstance(texts, str) else texts
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return BPETokenizer(backend)

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.backend.decode([i for i in ids if i < self.vocab_size])
