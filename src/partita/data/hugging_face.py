"""Hugging Face: data sets as a corpus and tokenizers by name, from the hub or from a folder.

Nothing is imported, and no connection made, before one of them is asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.reading import as_label, content_hash, files_under, package
from partita.errors import InputError, require

PREFIX = "hf:"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Loaded:
    """A data set whose rows lie in Arrow files, which are mapped into memory, not read into it."""

    name: str
    data: Any
    identity: bytes
    """A hash that changes when the rows do."""

    def texts(self, field: str, label: str | None = None) -> Iterator[tuple[str, str | None]]:
        """One field, and the one that holds the class, row by row. Rows without text are left out.

        Classes that the data set knows by name are called so.
        """
        names = self.data.column_names
        has = f"it has: {', '.join(names)}"
        for key, name in (("field", field), ("label", label)):
            there = name is None or name in names
            require(there, key, f"{self.name} has no column {name!r}", has)
        known = getattr(self.data.features.get(label), "names", None)
        columns = [field] if label is None else [field, label]
        for number, row in enumerate(self.data.select_columns(columns)):
            text = row[field]
            if text is None:
                continue
            problem = f"{self.name} row {number} holds no text under {field!r}"
            require(isinstance(text, str), "field", f"{problem} but {type(text).__name__}", has)
            if label is None:
                yield text, None
                continue
            found = known[row[label]] if known and isinstance(row[label], int) else row[label]
            yield text, as_label(found, f"{self.name} row {number}", label)


@dataclass(frozen=True)
class DataSet:
    """A data set of the hub, or a local folder that the package `datasets` understands."""

    name: str
    config: str | None = None
    split: str = "train"

    @staticmethod
    def parse(path: str) -> DataSet:
        """From "hf:NAME?config=...&split=..."; the part after the question mark may be missing."""
        name, _, query = path.removeprefix(PREFIX).partition("?")
        require(bool(name), "path", f"{path!r} names no data set", "give hf:NAME")
        options = {}
        for option in filter(None, query.split("&")):
            key, _, value = option.partition("=")
            known = key in ("config", "split") and bool(value)
            require(known, "path", f"cannot read {option!r} in {path!r}", "known: config=, split=")
            options[key] = value
        return DataSet(name, **options)

    def load(self) -> Loaded:
        """Fetch it if need be, and map its rows into memory.

        The fingerprint that `datasets` gives is a hash of name, configuration, split and the
        origin of every data file: the commit for files of the hub, but only the time of the last
        change for local ones, which a copy or an archive can set back. The files of a local folder
        are therefore hashed too, and what `datasets` keeps of them is kept under that hash.
        """
        datasets = package("datasets", f"{PREFIX}{self.name}", "datasets")
        contents, cache = hashlib.sha256(), None
        if Path(self.name).is_dir():
            for path in files_under(Path(self.name)):
                contents.update(os.fsencode(path.relative_to(self.name)) + b"\0")
                contents.update(content_hash(path))
            cache = str(Path(datasets.config.HF_DATASETS_CACHE, f"partita-{contents.hexdigest()}"))
        try:
            data = datasets.load_dataset(
                self.name, self.config, split=self.split, cache_dir=cache, keep_in_memory=False
            )
        except Exception as error:  # of many kinds: names, connections, formats
            why = " ".join(f"{error} {error.__cause__ or ''}".split())
            where = "" if cache else ", which is no folder here"
            raise InputError("path", f"the data set {self.name!r}{where}: {why}") from error
        contents.update(data._fingerprint.encode())
        return Loaded(f"{PREFIX}{self.name}", data, contents.digest())


def fetch_tokenizer(name: str) -> Path:
    """The `tokenizer.json` of a repository of the hub, from the local cache if it is current."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, TOKENIZER_FILE))
    except Exception as error:  # of many kinds: names, connections, permissions
        raise InputError(
            "tokenizer",
            f"{name!r} is no file here, and as a name on the hub: {why(error)}",
            f"give --tokenizer.name another name, or the path of a {TOKENIZER_FILE}",
        ) from error


def why(error: Exception) -> str:
    """One line for what keeps a file on the hub."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # before its base class
        return "the hub cannot be reached, and the local cache does not have it"
    if isinstance(error, errors.EntryNotFoundError):
        return f"the repository has no {TOKENIZER_FILE}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is closed to you"
    return " ".join(str(error).split())
