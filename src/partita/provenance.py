"""Where a number or a model comes from: versions, device, date, commit."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from partita.version import __version__


def environment(device: torch.device) -> dict[str, str]:
    """What a result depends on besides its inputs: versions, device, date, commit."""
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "partita": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
    }
    commit = _commit()
    return facts | ({} if commit is None else {"commit": commit})


def portable(provenance: dict[str, Any]) -> dict[str, Any]:
    """A model's provenance without folders of this machine: what it started from is a name.

    Provenance is read from files that are not trusted: any value may have another type.
    """
    origin = provenance.get("started_from")
    if not isinstance(origin, dict):
        return provenance
    place = origin.get("path")
    named = {"path": without_root(place)} if isinstance(place, str) else {}
    return provenance | {"started_from": portable(origin) | named}


def without_root(place: str) -> str:
    """The last name of an absolute path.

    Relative ones stay as they are: they may be names on the hub.
    """
    return Path(place).name if Path(place).is_absolute() else place


def _processor() -> str:
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


def _commit() -> str | None:
    """The commit that a checkout of the source stands at; None for an installed package."""
    git = Path(__file__).parents[2] / ".git"
    try:
        if git.is_file():  # a second working tree: "gitdir: FOLDER", beside those of the others
            git = Path(git.read_text().removeprefix("gitdir: ").strip())
        head = (git / "HEAD").read_text().strip()
        shared = git.parents[1] if git.parent.name == "worktrees" else git
        return head if not head.startswith("ref: ") else (shared / head[5:]).read_text().strip()
    except OSError:
        return None
