"""Image tokenizers as folders of the library's format: safetensors, JSON and checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partita.data import vq_tokenizer  # noqa: F401 - registers itself
from partita.data.image_tokenizers import ImageTokenizer, from_description
from partita.files import format
from partita.version import __version__


def save_image_tokenizer(
    tokenizer: ImageTokenizer, folder: str | Path, provenance: dict[str, Any] | None = None
) -> None:
    """Write a folder that `load_image_tokenizer` understands, atomically."""
    config = {"library": "partita", "version": __version__, "provenance": provenance or {}}
    contents: format.Contents = {format.CONFIG: config, format.TOKENIZER: tokenizer.describe()}
    contents = {**contents, format.WEIGHTS: tokenizer.tensors()}
    format.write(Path(folder), contents, kind=format.IMAGE_TOKENIZER)


def load_image_tokenizer(folder: str | Path) -> ImageTokenizer:
    """A tokenizer on the CPU. Every file is checked first; nothing in them is ever run."""
    folder = Path(folder)
    format.verify(folder, format.IMAGE_TOKENIZER)
    tensors = format.read_tensors(folder / format.WEIGHTS)
    format.check_finite(folder / format.WEIGHTS, tensors)
    description = format.read_json(folder / format.TOKENIZER)
    with format.blaming(folder / format.TOKENIZER):
        return from_description(description, tensors)
