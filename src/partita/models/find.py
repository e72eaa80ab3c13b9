"""Resolve a name to a folder: a model, the best checkpoint of a run, a repository of the hub.

For a distillation, which has a run for each round, it is the last student. The name `default`
means the model that the installation comes with, unless a file or folder here has that name.
`partita.files.names` decides which names are on the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from partita.errors import InputError, require
from partita.files import format
from partita.files.downloads import NotFetchedError, fetch_folder
from partita.files.names import ASK_THE_HUB, PREFIX, Hosted, hosted, missing, near
from partita.files.reading import reading
from partita.models import checkpoints
from partita.models.default import NAME, default_model, ships_a_model

_HINT = "partita train makes one"
_PUBLISHED = "partita import makes a model of weights that others published"
_TRIES = 5
T = TypeVar("T")


def find(path_or_hub_id: str | Path, revision: str | None = None, **hub: Any) -> Path:
    """The folder of a path or a hub id; `hub` are options of a download."""
    path, name = Path(path_or_hub_id), str(path_or_hub_id)
    with reading(path, "model", _known()):
        if path.is_dir() and not checkpoints.is_model(path):
            found = checkpoints.best(checkpoints.last_round(path))
            if found is None:
                absent = f"a model ({format.MANIFEST} is missing)"
                raise InputError("model", f"{path} holds neither {absent} nor a checkpoint", _HINT)
            return found
        if path.exists() or path.suffix.lower() in format.PICKLES:
            return path
    if name == NAME:
        return default_model()
    remote = hosted(name, "model")
    if remote is None:
        raise missing(name, "model", _known(), Path.is_dir)
    return _download(name, remote, revision, hub)


def read_found(
    read: Callable[[Path], T], path_or_hub_id: str | Path, revision: str | None = None, **hub: Any
) -> T:
    """Call `read` on the folder of a name (see `find`).

    A run in training removes checkpoints, and models are replaced. If that happens to a folder
    while it is read, the name is resolved again.
    """
    for _ in range(_TRIES):
        folder = find(path_or_hub_id, revision, **hub)
        before = _identity(folder)
        try:
            result = read(folder)
        except (InputError, OSError):
            there = before is not None and _identity(folder) == before
            if there or find(path_or_hub_id, revision, **hub) == folder:
                raise
            continue
        if _identity(folder) in (before, None):  # one that is gone was complete until then
            return result
    problem = f"{path_or_hub_id} was replaced {_TRIES} times while it was read"
    raise InputError("model", problem, "try again when it is not being written")


def _identity(folder: Path) -> tuple[int, ...] | None:
    """Identifies the model that has a name now; None if there is none."""
    try:
        facts = (folder / format.MANIFEST).stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns


def _download(name: str, remote: Hosted, revision: str | None, hub: dict[str, Any]) -> Path:
    twice = None not in (revision, remote.revision)
    require(not twice, "revision", f"{name} names one already", "leave one of them out")
    remote = replace(remote, revision=revision or remote.revision)
    try:
        return fetch_folder(remote, [format.MANIFEST, format.CARD, *format.KNOWN], **hub)
    except NotFetchedError as error:
        only = name.startswith(PREFIX)
        here = "" if only else f"is no folder here{near(name, Path.is_dir)}, and "
        problem = f"{name}{':' if only else ''} {here}the hub does not give it: {error.why}"
        known = f"check the name, or {_known()}"
        remedy = _PUBLISHED if error.absent else error.remedy("name it", known)
        raise InputError("model", problem, remedy) from error


def _known() -> str:
    own = f", or {NAME} for the model that this installation comes with" if ships_a_model() else ""
    return f"name a run folder, a model folder or {ASK_THE_HUB} on the hub{own}"
