"""Text as a kind of data: documents that follow each other, or one in a row."""

from __future__ import annotations

from pathlib import Path

from partita.data.any_tokenizer import AnyTokenizer
from partita.data.documents import SEPARATORS, Corpus
from partita.data.kinds import KINDS, USUAL, DataKind, DataSettings, TokenizerSettings
from partita.data.prepare import PrepareOptions, prepare
from partita.data.prepared import PrepareCallback, Prepared
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, naming, require
from partita.files.names import PREFIX

_NAMES = {name: f"data.{name}" for name in ("path", "field", "documents", "label")}


class TextData(DataKind):
    """Files of text, and data sets of the hub that have some."""

    name = "text"

    def claims(self, tokenizer: str) -> bool:  # noqa: ARG002 - text is the default
        return False

    def check(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:
        for name in KINDS:
            remedy = KINDS[name].remedy(data.path)
            if remedy is not None:
                problem = f"{tokenizer.name} makes no tokens of {name}"
                raise InputError("tokenizer.name", problem, remedy)
        corpus_of(data)

    def check_options(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:
        require(data.rows != "whole", "data.rows", "texts have no whole rows", "leave it out")
        of_pixels = "is for images of pixels; give --tokenizer.name pixels too"
        require(tokenizer.levels is None, "tokenizer.levels", of_pixels)

    def prepare(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        given: AnyTokenizer | None = None,
        callback: PrepareCallback | None = None,
    ) -> Prepared:
        return prepare(
            corpus_of(data),
            Path(data.cache),
            PrepareOptions(tokenizer.name, tokenizer.vocab_size, data.validation_fraction),
            None if given is None else _of_text(given),
            callback,
        )

    def check_network(self, tokenizer: AnyTokenizer, length: int, grid: int) -> None:
        """Texts are cut to any length."""

    def separator(self, data: DataSettings, tokenizer: AnyTokenizer) -> int | None:
        return len(_of_text(tokenizer).encode_array(SEPARATORS[data.documents]))


def corpus_of(data: DataSettings) -> Corpus:
    """The text that a recipe names, and how it is read."""
    require(bool(data.path), "data.path", "no text is given", "name a file: partita train FILE")
    path = data.path if data.path.startswith(PREFIX) else Path(data.path)
    with naming(_NAMES):
        return Corpus(path, data.field, data.documents, data.label)


def _of_text(tokenizer: AnyTokenizer) -> Tokenizer:
    if not isinstance(tokenizer, Tokenizer):
        raise InputError("model", f"is one of {tokenizer.data}, and this needs one of text")
    return tokenizer


TEXT = KINDS.register(USUAL)(TextData())
