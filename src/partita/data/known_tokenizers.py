"""The tokenizers that the library comes with, registered, and how one is made of its files."""

from __future__ import annotations

from partita.data import image_tokenizers, tokenizers, vq_tokenizer  # noqa: F401 - they register
from partita.data.any_tokenizer import AnyTokenizer
from partita.data.any_tokenizer import from_files as any_tokenizer

__all__ = ["AnyTokenizer", "any_tokenizer"]
