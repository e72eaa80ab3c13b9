"""Texts in files."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path


def texts(corpus):
    """Whole documents, put together from their pieces."""
    result, open_text = [], ""
    for piece in corpus.pieces():
        open_text += piece.text
        if piece.ends:
            result.append(open_text)
            open_text = ""
    assert open_text == "", "the last document never ended"
    return result


def write(path: Path, data: bytes) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as stream:
        stream.write(data)
    return path
