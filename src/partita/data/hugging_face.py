"""Hugging Face: data sets as a corpus and tokenizers by name, from the hub or from a folder.

Packages are imported, and connections made, on first use. `partita.files.names` decides which
names are on the hub.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.row_files import require_columns
from partita.errors import InputError, require
from partita.files.downloads import NotFetchedError, fetch, no_network, offline, out_of_reach
from partita.files.names import ASK_THE_HUB, PREFIX, Hosted, hosted, looks_local, near
from partita.files.reading import as_label, content_hash, files_under, package

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

        Numbers of classes become the data set's names for them.
        """
        names = self.data.column_names
        require_columns(names, self.name, field, label)
        known = getattr(self.data.features.get(label), "names", None)
        columns = [field] if label is None else [field, label]
        for number, row in enumerate(self.data.select_columns(columns)):
            text = row[field]
            if text is None:
                continue
            problem = f"{self.name} row {number} holds no text under {field!r}"
            kind, has = type(text).__name__, f"it has: {', '.join(names)}"
            require(isinstance(text, str), "field", f"{problem} but {kind}", has)
            if label is None:
                yield text, None
                continue
            found = known[row[label]] if known and isinstance(row[label], int) else row[label]
            yield text, as_label(found, f"{self.name} row {number}", label)


@dataclass(frozen=True)
class DataSet:
    """A data set of the hub, or a local folder that the package `datasets` understands.

    The name of a folder begins as paths do, such as ./folder: other names are the hub's.
    """

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
        remote = self._repository()
        contents, cache = hashlib.sha256(), None
        if remote is None:
            for path in files_under(Path(self.name)):
                contents.update(os.fsencode(path.relative_to(self.name)) + b"\0")
                contents.update(content_hash(path))
            cache = str(Path(datasets.config.HF_DATASETS_CACHE, f"partita-{contents.hexdigest()}"))
        trouble = None if remote is None else out_of_reach(remote, "README.md", "dataset")
        try:
            with nullcontext() if trouble is None else offline(datasets.config):
                data = datasets.load_dataset(
                    self.name if remote is None else remote.repository,
                    self.config,
                    split=self.split,
                    cache_dir=cache,
                    keep_in_memory=False,
                    revision=None if remote is None else remote.revision,
                )
        except Exception as error:  # of many kinds: names, connections, formats
            raise self._not_loaded(error, remote, trouble) from error
        contents.update(data._fingerprint.encode())
        return Loaded(f"{PREFIX}{self.name}", data, contents.digest())

    def _repository(self) -> Hosted | None:
        place = Path(self.name)
        if looks_local(self.name) or self.name.count("/") > 1:
            which = f"the data set {self.name!r}, which is no folder here{near(self.name)}"
            require(place.is_dir(), "path", which, f"check the name, or write {ASK_THE_HUB}")
            return None
        problem = f"{PREFIX}{self.name} asks the hub, and {self.name} is a folder here too"
        require(not place.is_dir(), "path", problem, f"write {PREFIX}./{self.name} for the folder")
        return hosted(f"{PREFIX}{self.name}", "path")

    def _not_loaded(
        self, error: Exception, remote: Hosted | None, trouble: str | None
    ) -> InputError:
        absent_here = "" if remote is None else f", which is no folder here{near(self.name)}"
        which = f"the data set {self.name!r}{absent_here}"
        if remote is not None and trouble is not None and isinstance(error, ConnectionError):
            absent = no_network(trouble, remote, kind="dataset")
            remedy = absent.remedy(f"give {PREFIX}./{remote.folder}", "")
            return InputError("path", f"{which}: {absent.why}", remedy)
        why = " ".join(f"{error} {error.__cause__ or ''}".split())
        return InputError("path", f"{which}: {why}")


def fetch_tokenizer(name: str, asked: Hosted, flag: str) -> Path:
    """The `tokenizer.json` of a repository of the hub, from the local cache if it is current.

    `name` is what the user gave, and `flag` where.
    """
    try:
        return fetch(asked, TOKENIZER_FILE)
    except NotFetchedError as error:
        here = f"is no file here{near(name)}, and as a name on the hub"
        then = f"give {flag} {asked.folder}/{TOKENIZER_FILE}"
        remedy = error.remedy(then, f"give {flag} another name, or the path of a {TOKENIZER_FILE}")
        raise InputError("tokenizer", f"{name!r} {here}: {error.why}", remedy) from error
