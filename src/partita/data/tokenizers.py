"""Tokenizers: text to ids and back. The mask (or start) id is not theirs: it is `vocab_size`."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from partita.data.any_tokenizer import TOKENIZERS, AnyTokenizer, from_files
from partita.data.long_words import without_long_words
from partita.errors import InputError, require, require_int

LARGEST_VOCABULARY = 1 << 24  # training a bpe or a network allocates all of it
_EVERY_TEXT = "leave it out; a model trained with bytes or bpe takes every text"
TEXT8_ALPHABET = "abcdefghijklmnopqrstuvwxyz "


class Tokenizer(AnyTokenizer):
    """The base class of tokenizers of text."""

    data = "text"

    def encode(self, text: str) -> list[int]:
        """Text to ids."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    @abstractmethod
    def encode_array(self, text: str) -> NDArray[Any]:
        """The same as an array, for large texts."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text; ids that are no token are left out."""


@TOKENIZERS.register("bytes")
class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 256 ids, no training, every text."""

    vocab_size = 256

    def encode_array(self, text: str) -> NDArray[Any]:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        return {"kind": "bytes"}

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ByteTokenizer:  # noqa: ARG004
        _refuse_tensors(tensors)
        return ByteTokenizer()


@TOKENIZERS.register("characters")
class CharacterTokenizer(Tokenizer):
    """One id per character of an alphabet. Text8's is a-z (0..25) and the space (26)."""

    def __init__(self, alphabet: str = TEXT8_ALPHABET) -> None:
        require(len(alphabet) > 0, "alphabet", "is empty")
        require(len(set(alphabet)) == len(alphabet), "alphabet", "holds a character twice")
        self.alphabet = alphabet
        points = np.array([ord(character) for character in alphabet])
        self._table = np.full(int(points.max()) + 2, -1, dtype=np.int64)  # the last: unknown
        self._table[points] = np.arange(len(alphabet))

    @staticmethod
    def train(texts: str | Iterable[str]) -> CharacterTokenizer:
        """The characters that occur in some texts."""
        return CharacterTokenizer("".join(sorted(set().union(*texts))))

    @property
    def vocab_size(self) -> int:
        return len(self.alphabet)

    def encode_array(self, text: str) -> NDArray[Any]:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids = self._table[np.minimum(points, len(self._table) - 1)]
        if ids.size and ids.min() < 0:
            problem = (
                f"the character {text[int(np.argmin(ids))]!r} is not in the tokenizer's alphabet"
            )
            raise InputError("text", problem, _EVERY_TEXT)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.alphabet[i] for i in ids if i < self.vocab_size)

    def describe(self) -> dict[str, Any]:
        return {"kind": "characters", "alphabet": self.alphabet}

    @staticmethod
    def restore(
        description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> CharacterTokenizer:
        _refuse_tensors(tensors)
        return CharacterTokenizer(_string(description, "alphabet"))


@contextmanager
def _naming_errors(problem: str) -> Iterator[None]:
    """Errors of the `tokenizers` library as `InputError`; its panics are no `Exception`s."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, InputError):
        raise
    except BaseException as error:
        raise InputError("tokenizer", f"{problem}: {' '.join(str(error).split())}") from error


@TOKENIZERS.register("tokenizers")
class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding, trained on the spot; every text survives the round trip.

    Any other tokenizer of the `tokenizers` library works here too, without that promise. Its
    special tokens are not added to texts: the corpus says where a document ends.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        problem = f"must be a tokenizers.Tokenizer, got {type(backend).__name__}"
        remedy = "BPETokenizer.train(texts, vocab_size) makes one"
        require(isinstance(backend, tokenizers.Tokenizer), "backend", problem, remedy)
        self.backend = backend
        self._sizes = (0, 0)
        self._loses = _may_lose(backend)

    @staticmethod
    def from_json(text: str) -> BPETokenizer:
        """From the text of a `tokenizer.json`, which is not trusted."""
        with _naming_errors("this is no tokenizer.json"):
            _refuse_false_sizes(json.loads(text))
            backend = tokenizers.Tokenizer.from_str(text)
            backend.no_truncation()  # such files often cut texts at what one model could read
            backend.no_padding()
            if isinstance(backend.model, models.BPE):
                backend.model.dropout = None  # would give a text other tokens every time
            result = BPETokenizer(backend)
            require(result.vocab_size > 0, "tokenizer", "it has no tokens")
        return result

    @staticmethod
    def train(texts: str | Iterable[str], vocab_size: int) -> BPETokenizer:
        """Learn merges from a text or several. Little text may give fewer tokens than `vocab_size`.

        Of words that never end, such as a genome, only a part is learned from (see `long_words`).
        """
        require_int(vocab_size, "vocab_size", 256)
        texts = [texts] if isinstance(texts, str) else texts
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        every = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=every, show_progress=False
        )
        backend.train_from_iterator(without_long_words(texts), trainer)
        return BPETokenizer(backend)

    @property
    def vocab_size(self) -> int:
        tokens = self.backend.get_vocab_size()
        if self._sizes[0] != tokens:  # some leave ids out, so the number of tokens is not enough
            largest = max(self.backend.get_vocab().values(), default=-1)
            problem = f"its largest id is {largest:,}, and room is made for every smaller one"
            remedy = f"ids end at {LARGEST_VOCABULARY - 1:,}: number the tokens from 0 on"
            require(largest < LARGEST_VOCABULARY, "tokenizer", problem, remedy)
            self._sizes = (tokens, 1 + largest)
        return self._sizes[1]

    def encode(self, text: str) -> list[int]:
        with _naming_errors("it cannot encode this text"):
            encoded = self.backend.encode(text, add_special_tokens=False)
        if self._loses:
            _refuse_losses(text, encoded.offsets)
        return encoded.ids

    def encode_array(self, text: str) -> NDArray[Any]:
        return np.asarray(self.encode(text), dtype=np.int64)

    def encode_arrays(self, texts: list[str]) -> list[NDArray[Any]]:
        """Several texts at once, on all cores."""
        if self._loses:
            return [self.encode_array(text) for text in texts]
        with _naming_errors("it cannot encode this text"):
            encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(e.ids, dtype=np.int64) for e in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        size = self.vocab_size
        return self.backend.decode([i for i in ids if i < size])

    def describe(self) -> dict[str, Any]:
        return {"kind": "tokenizers", "json": self.backend.to_str()}

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> BPETokenizer:
        _refuse_tensors(tensors)
        return BPETokenizer.from_json(_string(description, "json"))


def _may_lose(backend: tokenizers.Tokenizer) -> bool:
    """Whether characters that it does not know are dropped: it has no token for them, nor bytes."""
    if getattr(backend.model, "unk_token", None) is not None:
        return False
    if not isinstance(backend.model, models.BPE):
        return True
    words = backend.get_vocab()
    return not all(symbol in words for symbol in pre_tokenizers.ByteLevel.alphabet())


def _refuse_losses(text: str, offsets: list[tuple[int, int]]) -> None:
    """Every character but white space must be part of some token."""
    covered = np.zeros(len(text) + 1, dtype=np.int64)
    spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    np.add.at(covered, spans[:, 0], 1)
    np.add.at(covered, spans[:, 1], -1)
    for place in np.flatnonzero(np.cumsum(covered)[:-1] <= 0).tolist():
        if not text[place].isspace():
            problem = f"the character {text[place]!r} is not in the tokenizer's vocabulary"
            raise InputError("text", problem, _EVERY_TEXT)


def from_description(description: object) -> Tokenizer:
    """The tokenizer of text that `describe` described; anything else is refused."""
    made = from_files(description, {})
    if not isinstance(made, Tokenizer):
        raise InputError("tokenizer", f"is one of {made.data}, and this needs one of text")
    return made


def _refuse_tensors(tensors: Mapping[str, Tensor]) -> None:
    require(not tensors, "tokenizer", "a tokenizer of text has no tensors, but there are some")


def _string(description: Mapping[str, Any], key: str) -> str:
    value = description.get(key)
    if not isinstance(value, str):
        raise InputError("tokenizer", f"its description has no text under {key!r}")
    return value


def _refuse_false_sizes(content: object) -> None:
    """Refuse a table of characters whose size is wrong, which the `tokenizers` library believes.

    For a made-up size it would allocate gigabytes, and end the process if there are none.
    """
    if isinstance(content, list):
        for item in content:
            _refuse_false_sizes(item)
    elif isinstance(content, dict):
        table = content.get("precompiled_charsmap")
        if isinstance(table, str):
            data = base64.b64decode(table)
            size = int.from_bytes(data[:4], "little")
            require(size <= len(data), "normalizer", f"its table is cut short: {size} bytes")
        _refuse_false_sizes(list(content.values()))
