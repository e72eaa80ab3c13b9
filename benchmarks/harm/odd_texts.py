"""Hostile text: sound files with something inside that nobody would put there.

What checks containers have are made to hold again, so that what stands behind them is reached.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml  # type: ignore[import-untyped]
import zstandard

from tests.support import mutation

Inside = Callable[[Random, bytes], bytes]

ODD: tuple[str, ...] = ("\0", "\r\n", "\r", "\ufeff", "\u2028", "\u202e", "\ud7ff")
ODD += ("\U0010ffff", "[/b]", "[bold", "\x1b[2J", "____", "__3__", "<|endoftext|>", "{}", "%s")
ODD += ("\t", "'", '"', "\\", "_" * 300, "e\u0301" * 40, " " * 3000, "a" * 5000, "\n" * 500)


def odd_text(random: Random, data: bytes) -> bytes:
    """Characters that programs stumble over, somewhere in a text."""
    text = data.decode(errors="replace")
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice(ODD) + text[at:]
    return text.encode(random.choice(["utf-8"] * 6 + ["utf-16", "utf-8-sig"]), errors="replace")


def json_lines(random: Random, data: bytes) -> bytes:
    """Some lines of JSON with another value, key or nesting."""
    lines = data.decode().splitlines()
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines))
        lines[at] = mutation.dumped(mutation.alter(random, json.loads(data.splitlines()[at])))
    return "\n".join(lines).encode(errors="surrogatepass")


def json_document(random: Random, data: bytes) -> bytes:
    """A document of JSON with something replaced, removed, added or moved."""
    altered: bytes = mutation.alter_json(random, data)
    return altered


def yaml_document(random: Random, data: bytes) -> bytes:
    """The same in YAML, with its tags and anchors."""
    content = mutation.alter(random, yaml.safe_load(data))
    text: str = yaml.safe_dump(content, allow_unicode=True)
    tags = ("!!python/object/apply:os.system ['touch harm']", "&a [*a]", "!!binary x", "1e9999")
    if random.random() < 0.3:
        key, _, rest = text.partition(": ")
        text = f"{key}: {random.choice(tags)}\n{rest.partition(chr(10))[2]}"
    return text.encode(errors="surrogatepass")


def packed(how: Callable[[bytes], bytes]) -> Inside:
    """Odd text inside a container, or text that unpacks to far more than it was."""

    def inside(random: Random, data: bytes) -> bytes:
        text = _unpacked(data)
        if random.random() < 0.2:
            return how(b"a" * random.choice([1 << 20, 1 << 24]))
        if random.random() < 0.2:
            return how(text) + how(odd_text(random, text))
        return how(odd_text(random, text))

    inside.__name__ = f"packed by {how.__module__}"
    return inside


def _unpacked(data: bytes) -> bytes:
    """Whatever it was packed by."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    text = lzma.decompress if data[:1] == b"\xfd" else zstandard.ZstdDecompressor().decompress
    return text(data)


def zstd(data: bytes) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def parquet(random: Random, data: bytes) -> bytes:
    """A table whose columns have other types, names or values."""
    table = pyarrow.parquet.read_table(io.BytesIO(data))
    text = table.column("text").to_pylist()
    columns: dict[str, Any] = {
        "numbers": list(range(len(text))),
        "lists": [[t] for t in text],
        "bytes": [t.encode() for t in text],
        "nothing": [None] * len(text),
        "odd": [odd_text(random, t.encode()).decode(errors="replace") for t in text],
        "categories": pyarrow.array(text).dictionary_encode(),
        "structs": [{"text": t} for t in text],
        "none": [],
    }
    held = columns[random.choice(list(columns))]
    name = random.choice(["text", "text", "text", "Text", "", "☃"])
    stream = io.BytesIO()
    made = pyarrow.table({name: held})
    packing = random.choice(["snappy", "gzip", "zstd", "none"])
    pyarrow.parquet.write_table(made, stream, compression=packing)
    return stream.getvalue()
