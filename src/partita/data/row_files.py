"""Read JSONL and Parquet row by row; each row is held in memory as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partita.data.text_files import PIECE, decoded
from partita.errors import InputError, require
from partita.files.reading import as_label, package, require_file

LONGEST_LINE = 1 << 26  # characters
_SHORTER = "make several rows of it, or a file of plain text, which may be of any length"
_UTF8 = 4  # bytes of a character at most
_ROWS = 32  # of Parquet at a time: few, since each may be long

Labelled = tuple[str, str | None]
Metadata = Any  # of pyarrow, which need not be installed


def json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The value of each line of a JSONL file, after a text that says where it stands."""
    for number, line in enumerate(_lines(path), 1):
        place = f"{path} line {number}"
        try:
            if line.strip():
                yield place, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError("path", f"{place} is not JSON: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file. Each character is looked at once, however long its line is."""
    held: list[str] = []
    number, size = 1, 0
    for chunk in decoded(path, PIECE):
        *complete, rest = chunk.split("\n")
        for line in complete:
            yield "".join([*held, line])
            held, number, size = [], number + 1, 0
        held.append(rest)
        size += len(rest)
        problem = f"{path} line {number} has more than {LONGEST_LINE:,} characters"
        require(size <= LONGEST_LINE, "path", problem, _SHORTER)
    yield "".join(held)


def json_texts(path: Path, field: str, label: str | None) -> Iterator[Labelled]:
    """The text of each line of a JSONL file, and its class if a field has it."""
    for place, row in json_rows(path):
        if isinstance(row, dict) and field in row and row[field] is None:
            continue  # as in Parquet: a row without text
        text = row.get(field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            has = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise InputError("field", f"{place} has no text under {field!r}", f"it has: {has:.200}")
        require_unicode(text, place)
        yield text, None if label is None else as_label(row.get(label), place, label)


def require_unicode(text: str, place: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("path", f"{place} is no Unicode text: {error.reason}") from error


def parquet_texts(path: Path, field: str, label: str | None) -> Iterator[Labelled]:
    """The text of each row of a Parquet file, and its class if a column has it."""
    require_file(path)
    parquet = package("pyarrow.parquet", path, "parquet")
    try:
        file = parquet.ParquetFile(path, page_checksum_verification=True)  # where there are any
        names = file.schema_arrow.names
        require_columns(names, path, field, label)
        _refuse_long_rows(path, file.metadata, field)
        columns = [field] if label is None else [field, label]
        for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
            classes = [None] * len(batch) if label is None else batch.column(label).to_pylist()
            for held, found in zip(batch.column(field), classes, strict=True):
                text = held.as_py()  # one by one, since each may be long
                if text is not None:
                    require(isinstance(text, str), "field", f"{path}: {field!r} holds no text")
                    require(len(text) <= LONGEST_LINE, "path", _long(path), _SHORTER)
                    yield text, None if label is None else as_label(found, str(path), label)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        why = " ".join(str(error).split())
        raise InputError("path", f"{path} is damaged or no Parquet file: {why}") from error


def require_columns(names: list[str], place: str | Path, field: str, label: str | None) -> None:
    """Refuse rows without the column of the texts, or that of the classes if there is one."""
    for key, name in (("field", field), ("label", label)):
        there = name is None or name in names
        require(there, key, f"{place} has no column {name!r}", f"it has: {', '.join(names)}")


def _refuse_long_rows(path: Path, metadata: Metadata, field: str) -> None:
    """Refuse rows that are too long on average, before any of them is unpacked."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.total_byte_size <= max(group.num_rows, 1) * LONGEST_LINE * _UTF8:
            continue  # reading what a damaged file says of a column may end the program
        for column in (group.column(index) for index in range(group.num_columns)):
            most = max(column.num_values, 1) * LONGEST_LINE * _UTF8
            fits = column.path_in_schema != field or column.total_uncompressed_size <= most
            require(fits, "path", _long(path), _SHORTER)


def _long(path: Path) -> str:
    return f"{path} has rows of more than {LONGEST_LINE:,} characters"
