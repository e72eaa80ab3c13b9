"""`partita export`: write a model as a folder to share, with a model card; `--push` uploads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from partita.commands.parsing import MODEL, reader
from partita.commands.terminal import Terminal
from partita.errors import InputError, leaves, require, require_known
from partita.files import format
from partita.files.atomic import check_new
from partita.models.find import read_found
from partita.models.trained import TrainedModel, load

PRECISIONS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita export`."""

    model: str
    out: str
    precision: str | None = None
    """Precision of the stored weights: bfloat16, which rounds them and halves the file, or float32;
    by default as they are. (Computation with them is in float32 in either case.)"""
    push: str | None = None
    """Upload to the Hugging Face hub under this id, such as name/model."""
    private: bool = False
    """With --push: a private repository."""

    def __post_init__(self) -> None:
        require(bool(self.out), "out", "is empty", "name a folder")
        if self.precision is not None:
            require_known(self.precision, "--precision", PRECISIONS)
        lonely = self.private and self.push is None
        require(not lonely, "--private", "nothing is uploaded", "give --push NAME/MODEL too")
        if self.push is not None:
            try:
                validate_repo_id(self.push)
            except HFValidationError as error:
                raise InputError("--push", str(error), "give NAME/MODEL") from error


options = reader(
    "export",
    "Write a model to a folder of safetensors and JSON files, with a model card. The folder\n"
    "contains neither the state that only training needs nor paths of this machine: of the\n"
    "training text it has only the name. If the model was itself exported, the license and\n"
    "the language in its card are kept. partita.load reads the folder, from disk or the hub.",
    [
        "partita export runs/notes-mdlm notes-model",
        "partita export runs/notes-mdlm notes-model --precision bfloat16",
        "partita export runs/notes-mdlm notes-model --push NAME/notes-model",
    ],
    Options,
    model=MODEL,
    out="the folder to write; it must not exist yet",
)


def run(words: Sequence[str]) -> None:
    """Load, write, upload."""
    chosen = options(words)
    out = Path(chosen.out)
    check_new(out, "out")
    model, stored = read_found(_with_precision, chosen.model)
    precision = stored if chosen.precision is None else PRECISIONS[chosen.precision]
    model.method.to(precision)
    model.save(out)
    console = Terminal()
    shown = str(precision).removeprefix("torch.")
    console.say(f"Exported to {out}, weights in {shown}")
    if chosen.push is not None:
        url = _push(model, chosen.push, chosen.private, out)
        console.say(f"Uploaded: {url}")


def _with_precision(folder: Path) -> tuple[TrainedModel, torch.dtype]:
    """A model, and the precision in which it is stored, which may be below that of its use."""
    return load(folder, device="cpu"), format.precision(folder / format.WEIGHTS)


def _push(model: TrainedModel, name: str, private: bool, out: Path) -> object:
    """Upload a model; if that fails, the local folder stays."""
    try:
        return model.push_to_hub(name, private=private)
    except KeyboardInterrupt as error:
        leaves(error, f"{out} is complete: hf upload {name} {out}")
        raise
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        why = " ".join(str(error).split())
        remedy = f"{out} is complete: log in with hf auth login, then hf upload {name} {out}"
        raise InputError("--push", f"the upload failed: {why}", remedy) from error
