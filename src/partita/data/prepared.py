"""A folder of prepared tokens: opened after a check of every byte, or made.

train/  valid/          shards of tokens
tokenizer.json          the tokenizer that made them
tokenizer.safetensors   its tensors, if it has some (images)
checksums.json          those of the tokenizer and of the shards' manifests
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from partita.data.checking import Progress, check_contents, size_of
from partita.data.known_tokenizers import AnyTokenizer, any_tokenizer
from partita.data.manifest import MANIFEST, recorded
from partita.data.shards import Shards
from partita.errors import InputError, require
from partita.files.atomic import check_folder, clear_leftovers, sha256, whole_folder
from partita.files.reading import reading

TOKENIZER = "tokenizer.json"
TOKENIZER_TENSORS = "tokenizer.safetensors"
CHECKSUMS = "checksums.json"
_TOKENS = ("train", "valid")
_SMALL = (TOKENIZER, TOKENIZER_TENSORS, *(f"{part}/{MANIFEST}" for part in _TOKENS))


@dataclass(frozen=True)
class Prepared:
    """A corpus as tokens."""

    folder: Path
    train: Shards
    valid: Shards
    tokenizer: AnyTokenizer
    fresh: bool
    """Whether the tokens were made just now; otherwise the cache had them."""

    @staticmethod
    def open(
        folder: Path, fresh: bool = False, *, verify: bool = True, progress: Progress | None = None
    ) -> Prepared:
        """A prepared corpus from its folder; with `verify`, every byte is checked first."""
        path = folder / TOKENIZER
        require(path.is_file(), "folder", f"{folder} holds no prepared corpus")
        if verify:
            _check_small(folder)
        train, valid = (Shards.open(folder / part, verify=False) for part in _TOKENS)
        if verify:
            parts = [recorded(part.folder, part.manifest) for part in (train, valid)]
            check_contents(parts[0] | parts[1], progress)
        tensors = folder / TOKENIZER_TENSORS
        try:
            description = json.loads(path.read_text())
            held = load_file(tensors) if tensors.exists() else {}
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise InputError("folder", f"{path} is damaged: {error}", "prepare again") from error
        return Prepared(folder, train, valid, any_tokenizer(description, held), fresh)


class PrepareCallback:
    """What is called while data are prepared: a method does nothing unless it is overridden.

    The two about tokens may refuse them by an error, and nothing is left behind then.
    """

    least: int = 1
    """The least number of tokens to train on; fewer are refused."""

    def on_name(self, name: str) -> None:
        """The name of the tokens' folder is known; nothing has been tokenized yet."""

    def on_tokens(self, prepared: Prepared) -> None:
        """The tokens are there, but new ones are not in the cache yet."""

    def on_prepare(self, characters: int) -> None:
        """`characters` have been read so far; from 0 on again once a tokenizer is trained."""

    def on_check(self, done: int, total: int) -> None:
        """`done` of `total` bytes of tokens from the cache have been checked."""


class _MadeMeanwhileError(Exception):
    """Another process made the same folder first."""


def tokens_in(folder: Path, make: Callable[[Path], None], callback: PrepareCallback) -> Prepared:
    """The tokens in a folder of the cache, after a check of every byte, or made now.

    Several processes may make the same tokens: the first that is done keeps the folder, and all
    use it.
    """
    clear_leftovers(folder.parent)
    if folder.exists():
        prepared = _from_cache(folder, callback)
        callback.on_tokens(prepared)
        return prepared
    check_folder(folder.parent, "cache")
    try:
        with whole_folder(folder) as partial:
            make(partial)
            checksums = {name: sha256(partial / name) for name in _small_of(partial)}
            (partial / CHECKSUMS).write_text(json.dumps(checksums, indent=1))
            callback.on_tokens(Prepared.open(partial, verify=False))
            if folder.exists():
                raise _MadeMeanwhileError
    except _MadeMeanwhileError:
        return _from_cache(folder, callback)
    return Prepared.open(folder, fresh=True, verify=False)


def _from_cache(folder: Path, callback: PrepareCallback) -> Prepared:
    try:
        return Prepared.open(folder, progress=callback.on_check)
    except InputError as error:
        remedy = f"remove {folder}, and it is made anew"
        raise InputError(error.argument, error.problem, remedy) from error


def _small_of(folder: Path) -> list[str]:
    return [name for name in _SMALL if (folder / name).exists()]


def _check_small(folder: Path) -> None:
    """Check what the checksums of the shards do not cover, if the folder has a record of it."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    try:
        with reading(path, "folder"):
            checksums = json.loads(path.read_bytes())
        fits = isinstance(checksums, dict) and checksums.keys() <= set(_SMALL)
    except (ValueError, RecursionError) as error:
        raise InputError("folder", f"{path} is damaged: {error}", "prepare again") from error
    require(fits, "folder", f"{path} is damaged: it names other files", "prepare again")
    for name in {*checksums, *_small_of(folder)}:
        size_of(folder / name)
    check_contents({folder / name: str(checksums.get(name)) for name in _small_of(folder)})
