"""Where a number or a model comes from: versions, device, date, commit."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from partita import __version__


def environment(device: torch.device) -> dict[str, str]:
    """What a result depends on, beside its inputs."""
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "partita": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
    }
    commit = _commit()
    return facts | ({} if commit is None else {"commit": commit})


def _processor() -> str:
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


def _commit() -> str | None:
    """The commit that a checkout of the source stands at; None for an installed package."""
    git = Path(__file__).parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        return head if not head.startswith("ref: ") else (git / head[5:]).read_text().strip()
    except OSError:
        return None
