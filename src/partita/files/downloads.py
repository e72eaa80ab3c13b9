"""Download files of the Hugging Face hub, or take them from the cache if it cannot be reached.

The hub's own functions try again for half a minute before they report that there is no network.
Here one small request comes first, and only if the hub answers are files downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.files.names import Hosted

_PATIENCE = 10.0  # seconds for the first answer
_BUSY = (408, 429, 500, 502, 503, 504)  # what the hub's own functions would wait for


class NotFetchedError(Exception):
    """A failed download: the reason, and the command that works where there is a network."""

    def __init__(
        self, why: str, command: str = "", *, absent: bool = False, trouble: str | None = None
    ) -> None:
        self.why, self._command = why, command
        self.absent = absent
        """Whether the repository exists, without the file."""
        self.trouble = trouble
        """Why the hub cannot be reached, if that is the reason."""
        super().__init__(why)

    def remedy(self, then: str, otherwise: str) -> str:
        """How to get the files without a network, and `then` use them; `otherwise` with one."""
        if not self._command:
            return otherwise
        return f"where there is a network run {self._command}, bring that folder here and {then}"


def fetch(asked: Hosted, file: str, *beside: str, trouble: str | None = None) -> Path:
    """One file of a repository.

    If the hub cannot be reached, an error says how to get the file and those that are needed
    `beside` it. It is not tried if the `trouble` is known already.
    """
    from huggingface_hub import hf_hub_download

    trouble = trouble or out_of_reach(asked, file)
    name, here = asked.repository, trouble is not None
    with _failing(asked, file, trouble, file, *beside):
        return Path(hf_hub_download(name, file, revision=asked.revision, local_files_only=here))


def fetch_folder(asked: Hosted, files: list[str], **hub: Any) -> Path:
    """Some files of a repository, the first of which it must have; `hub` are the hub's options."""
    from huggingface_hub import snapshot_download

    trouble = "local_files_only is set" if hub.pop("local_files_only", False) else None
    if trouble is None:
        with _failing(asked, files[0], None):
            trouble = out_of_reach(asked, files[0], token=hub.get("token"), required=True)
    hub |= {"revision": asked.revision, "local_files_only": trouble is not None}
    with _failing(asked, files[0], trouble):
        return Path(snapshot_download(asked.repository, allow_patterns=files, **hub))


@contextmanager
def _failing(asked: Hosted, file: str, trouble: str | None, *files: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of many kinds: names, connections, permissions
        if trouble is not None:
            raise no_network(trouble, asked, *files) from error
        raise _not_fetched(error, asked, file) from error


def out_of_reach(
    asked: Hosted,
    file: str,
    kind: str = "model",
    token: str | bool | None = None,
    *,
    required: bool = False,
) -> str | None:
    """Why the hub cannot be reached, by one request for a file; None if it answers.

    That the file is not in the repository is an answer, and an error only if it is `required`.
    """
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        url = hf_hub_url(asked.repository, file, repo_type=kind, revision=asked.revision)
        get_hf_file_metadata(url, token=token, timeout=_PATIENCE)
    except errors.HFValidationError:
        return None  # an invalid name: the download reports it
    except errors.HfHubHTTPError as error:
        if required and isinstance(error, errors.EntryNotFoundError):
            raise
        status = error.response.status_code
        return f"it answers {status}" if status in _BUSY else None
    except Exception as error:  # of many kinds, and of other libraries from version to version
        return " ".join(str(error).split()) or type(error).__name__
    return None


@contextmanager
def offline(*libraries: ModuleType) -> Iterator[None]:
    """Inside, the hub's functions use only their caches.

    The libraries read an environment variable for it when they are imported; this sets the constant
    that they made of it.
    """
    from huggingface_hub import constants

    before = {each: each.HF_HUB_OFFLINE for each in (constants, *libraries)}
    try:
        for each in before:
            each.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        yield
    finally:
        for each, value in before.items():
            each.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]


def no_network(trouble: str, asked: Hosted, *files: str, kind: str = "model") -> NotFetchedError:
    """The error for files that need a network, with the command that downloads them."""
    command = " ".join(["hf download", asked.repository, *files])
    command += f" --repo-type {kind}" if kind != "model" else ""
    command += f" --revision {asked.revision}" if asked.revision else ""
    why = f"the hub cannot be reached ({trouble}), and the cache here does not have it"
    return NotFetchedError(why, f"{command} --local-dir {asked.folder}", trouble=trouble)


def _not_fetched(error: Exception, asked: Hosted, file: str) -> NotFetchedError:
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # before its base class
        return NotFetchedError("the hub cannot be reached, and the cache here does not have it")
    if isinstance(error, errors.EntryNotFoundError):
        return NotFetchedError(f"the repository has no {file}", absent=True)
    if isinstance(error, errors.RevisionNotFoundError):
        return NotFetchedError(f"the repository has no revision {asked.revision}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotFetchedError("there is no such repository, or it is closed to you")
    return NotFetchedError(" ".join(str(error).split()))
