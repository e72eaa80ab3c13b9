"""Which folder a name means: a model, the best checkpoint of a run, or a repository of the hub.

Of a distillation, which is a run for each of its rounds, the last student is meant. The name
`default` means the model that the installation comes with, unless something here is called so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from partita.data.hugging_face import why
from partita.data.reading import reading
from partita.errors import InputError
from partita.hub import checkpoints, format
from partita.hub.default import NAME, default_model, ships_a_model

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HINT = "partita train makes one"


def find(path_or_hub_id: str | Path, revision: str | None = None, **hub: Any) -> Path:
    """The folder that a path or a hub id means; `hub` are options of a download."""
    path, name = Path(path_or_hub_id), str(path_or_hub_id)
    with reading(path, "model", _known()):
        if path.is_dir() and not checkpoints.is_model(path):
            found = checkpoints.best(checkpoints.last_round(path))
            if found is None:
                missing = f"a model ({format.MANIFEST} is missing)"
                raise InputError("model", f"{path} holds neither {missing} nor a checkpoint", _HINT)
            return found
        here = path.exists() or path.suffix.lower() in format.PICKLES
    if name == NAME and not here:
        return default_model()
    if here:
        return path
    if not _HUB_ID.fullmatch(name):
        raise InputError("model", f"{path} does not exist", _known())
    wanted = [format.MANIFEST, format.CARD, *format.KNOWN]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, **hub))
    except Exception as error:  # of many kinds: names, connections, permissions
        raise InputError(
            "model",
            f"{name} is no folder here, and the hub does not give it: {why(error)}",
            "check the name and the network",
        ) from error


def _known() -> str:
    """What a model may be called."""
    own = f", or {NAME} for the model that this installation comes with" if ships_a_model() else ""
    return f"name a run folder, a model folder or a hub id{own}"
