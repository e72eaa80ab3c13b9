"""Checkpoints of PyTorch Lightning, as the reference implementations of MDLM, PGM and SDTT save.

    state_dict          the weights (a file may also be a state dict by itself)
    ema                 {decay, num_updates, shadow_params}: the moving average, in a list
    hyper_parameters    {config}: how it was trained, which says what method the weights are of
    optimizer_states, callbacks, loops, ...

The rest is neither read nor rebuilt: it is made of classes of the training program, and a file
that may name any class may run any code. See `pickles.py` for how it is passed over.
"""

from __future__ import annotations

from pathlib import Path

from partita.errors import MOST, InputError, require
from partita.files.reading import reading
from partita.models.published import archives
from partita.models.published.archives import Archive
from partita.models.published.pickled_values import View, entry
from partita.models.published.stored import Checkpoint, Stored, read_safetensors

_SHOWN = 5
_KINDS = "give a .ckpt of Lightning or a .safetensors file"
_RESAVE = "if you trust it, load it in PyTorch and save its tensors as safetensors"


def read_checkpoint(path: Path, *, ema: bool = True) -> Checkpoint:
    """Read a file, whose format its first bytes tell. Without `ema`, no average is read."""
    with reading(path, "file"):
        require(path.exists(), "file", f"{path} does not exist", "check the name")
        require(path.is_file(), "file", f"{path} is no file", _KINDS)
        with path.open("rb") as file:
            start = file.read(16)
        if start.startswith(archives.MAGIC):
            return _read_lightning(path, ema=ema)
        if start[8:9] == b"{":
            return read_safetensors(path)
    problem = f"{path} is neither a zip archive of torch.save nor safetensors"
    raise InputError("file", problem, _RESAVE if start[:1] == b"\x80" else _KINDS)


def _read_lightning(path: Path, *, ema: bool) -> Checkpoint:
    archive = Archive(path)
    content = archive.content()
    held = content if isinstance(content, dict) else {}
    state = held.get("state_dict")
    if held and all(isinstance(value, View) for value in held.values()):
        state = held  # a state dict, saved by itself
    if not isinstance(state, dict) or not state:
        raise InputError("file", f"{path} holds no state_dict{_listed(held)}", _KINDS)
    average = held.get("ema") if ema else None
    step, config = held.get("global_step"), entry(held, "hyper_parameters", "config")
    return Checkpoint(
        {name: _stored(archive, x, f"state_dict: {name:.200}") for name, x in state.items()},
        None if average is None else _average(archive, average),
        step if type(step) is int and 0 <= step <= MOST else None,
        entry(held, "hyper_parameters") if config is None else config,
    )


def _average(archive: Archive, average: object) -> list[Stored]:
    shadow = average.get("shadow_params") if isinstance(average, dict) else None
    if not isinstance(shadow, list):
        problem = f"the ema of {archive.path} holds no list shadow_params"
        raise InputError("file", problem, "give --weights raw to leave it alone")
    numbered = enumerate(shadow)
    return [_stored(archive, value, f"ema: shadow_params[{n}]") for n, value in numbered]


def _stored(archive: Archive, value: object, name: str) -> Stored:
    if not isinstance(value, View):
        raise InputError("file", f"{archive.path}: {name} is no plain tensor", _RESAVE)
    return archive.stored(value)


def _listed(held: dict[str, object]) -> str:
    names = ", ".join(f"{name:.40}" for name in list(held)[:_SHOWN])
    return f" (it holds: {names})" if names else ""
