"""The contents of a saved model's files besides its weights."""

from __future__ import annotations

from typing import Any

from partita.config.migration import stamped
from partita.config.recipe import Recipe
from partita.data.any_tokenizer import AnyTokenizer
from partita.files import format
from partita.version import __version__


def config(recipe: Recipe, tokenizer: AnyTokenizer, provenance: dict[str, Any]) -> dict[str, Any]:
    """The content of `config.json`."""
    return {
        "library": "partita",
        "version": __version__,
        "tokens": tokenizer.vocab_size,
        **stamped(recipe.to_dict()),
        "provenance": provenance,
    }


def tokenizer_files(tokenizer: AnyTokenizer) -> dict[str, Any]:
    """The files that hold a tokenizer: a description, and tensors if it has some."""
    tensors = tokenizer.tensors()
    files: dict[str, Any] = {format.TOKENIZER: tokenizer.describe()}
    return files | ({format.TOKENIZER_TENSORS: tensors} if tensors else {})
