"""Tokenizers of any kind of data: of text, or of images."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from partita.data import image_tokenizers, tokenizers
from partita.data import vq_tokenizer as _vq_tokenizer  # noqa: F401 - registers itself
from partita.data.image_tokenizers import IMAGE_TOKENIZERS, ImageTokenizer
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, require

AnyTokenizer = Tokenizer | ImageTokenizer


def any_tokenizer(description: object, tensors: Mapping[str, Tensor]) -> AnyTokenizer:
    """The tokenizer that a description and tensors make; what is in them is not trusted."""
    kind = description.get("kind") if isinstance(description, dict) else None
    if isinstance(kind, str) and kind in IMAGE_TOKENIZERS:
        return image_tokenizers.from_description(description, tensors)
    require(not tensors, "tokenizer", "a tokenizer of text has no tensors, but there are some")
    return tokenizers.from_description(description)


def text_tokenizer(tokenizer: AnyTokenizer) -> Tokenizer:
    """A tokenizer of text; one of images is refused."""
    if isinstance(tokenizer, ImageTokenizer):
        raise InputError("model", "is one of images, and this needs one of text")
    return tokenizer
