"""The contents of a saved model's files."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from partita.config.migration import stamped
from partita.config.recipe import Recipe
from partita.data.any_tokenizer import AnyTokenizer
from partita.files import format
from partita.version import __version__


def model_files(
    recipe: Recipe, tokenizer: AnyTokenizer, provenance: dict[str, Any], weights: dict[str, Tensor]
) -> dict[str, Any]:
    """The files of a saved model and their contents."""
    config = {"library": "partita", "version": __version__, "tokens": tokenizer.vocab_size}
    config |= {**stamped(recipe.to_dict()), "provenance": provenance}
    return {format.CONFIG: config, **tokenizer_files(tokenizer), format.WEIGHTS: weights}


def tokenizer_files(tokenizer: AnyTokenizer) -> dict[str, Any]:
    """The files that hold a tokenizer: a description, and tensors if it has some."""
    tensors = tokenizer.tensors()
    files: dict[str, Any] = {format.TOKENIZER: tokenizer.describe()}
    return files | ({format.TOKENIZER_TENSORS: tensors} if tensors else {})
