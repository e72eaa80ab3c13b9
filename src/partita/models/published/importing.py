"""Published checkpoints of MDLM, PGM and SDTT as models of ours.

The method of a file (`identity.py`) and its network (`planning.py`) are found by its configuration
and by the names and shapes of tensors, before any numbers are read. Time layers of a network that
is not conditioned on the time are folded into the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partita.config.data import TokenizerOptions
from partita.config.recipe import Recipe
from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.errors import InputError, require
from partita.files import format
from partita.files.atomic import sha256
from partita.files.reading import reading
from partita.models import assembling, checkpoints
from partita.models.published import identity, planning
from partita.models.published.folding import fold_time
from partita.models.published.lightning import read_checkpoint
from partita.models.published.planning import NETWORKS, ImportOptions, Plan
from partita.models.published.reference import DERIVED
from partita.models.published.selection import Selection, select
from partita.models.published.stored import Stored
from partita.models.text_model import TextModel
from partita.provenance import environment

_ROTARY_BASE = 10000.0
_DOCUMENT_END = "<|endoftext|>"


def look_into(path: Path, options: ImportOptions) -> tuple[Selection, Plan, int | None]:
    """What a file holds, what it becomes, and after how many steps, before its numbers are read."""
    identity.require_method(options.method)
    _refuse_ours(path)
    checkpoint = read_checkpoint(path, ema=options.weights != "raw")
    with blaming(path):
        said = identity.statements(path, checkpoint)
        identity.refuse_foreign(said, options.method)
        chosen = select(checkpoint, options.weights, options.skip)
        planning.check_numbers(chosen.state, path.stat().st_size)
        plan = planning.make_plan(chosen.state, options)
        planning.check_tensors(chosen.state, plan)
        identity.check_method(plan.method.name, said, options.method)
        identity.check_time(plan.method.name, said, options.conditioning)
    return chosen, plan, checkpoint.step


def _refuse_ours(path: Path) -> None:
    folder = path if path.is_dir() else path.parent
    ours = checkpoints.is_model(folder) and (path.is_dir() or path.name == format.WEIGHTS)
    ours = ours or (path.is_dir() and bool(checkpoints.listed(path)))
    remedy = f"give {folder} to any other verb"
    require(not ours, "file", f"{path} is a model of this library already", remedy)


def import_model(
    path: Path,
    tokenizer: Tokenizer,
    options: ImportOptions,
    tell: Callable[[str], None] = lambda _: None,
    tokenizer_name: str = "bytes",
) -> TextModel:
    """The model in a file. `tell` is called with what is going on: files are large."""
    chosen, plan, step = look_into(path, options)
    with blaming(path):
        planning.check_tokenizer(chosen.state, tokenizer, tokenizer_name)
    tell(f"Reading {len(chosen.state)} tensors of {path} ({chosen.weights} weights)")
    with reading(path, "file"), blaming(path):
        weights = _read(chosen.state, plan)
        _start_of_documents(weights, plan, tokenizer)
    named = TokenizerOptions(tokenizer_name)
    recipe = Recipe(tokenizer=named, method=plan.method, network=plan.network)
    weights = {f"network.{name}": tensor for name, tensor in weights.items()}
    method = assembling.build(recipe, tokenizer, weights, path)
    tell("Computing its checksum")
    return TextModel(method, tokenizer, recipe, _provenance(path, chosen, plan, step))


def _read(state: Mapping[str, Stored], plan: Plan) -> dict[str, Tensor]:
    """The weights under our names, in float32 and in memory of their own."""
    tensors = {}
    for key, stored in state.items():
        tensors[key] = tensor = stored.read().float()
        problem = f"{key:.100} holds a NaN or an infinite number"
        require(bool(tensor.isfinite().all()), "file", problem)
    if DERIVED in tensors:
        _check_rotary(tensors[DERIVED])
    weights = planning.renamed_by(tensors, plan)
    if plan.folded:
        weights = fold_time(weights)
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def _check_rotary(frequencies: Tensor) -> None:
    """The one buffer follows from the width, unless somebody chose another base."""
    ours = _ROTARY_BASE ** -(torch.arange(frequencies.numel()) / frequencies.numel())
    usual = torch.allclose(frequencies.flatten(), ours, rtol=1e-2)  # it may be bfloat16
    require(usual, "file", f"its rotary frequencies are not those of base {_ROTARY_BASE:g}")


def _start_of_documents(weights: dict[str, Tensor], plan: Plan, tokenizer: Tokenizer) -> None:
    """AR: what stands before the first token.

    Ours is the last id, which the reference never trains: it begins rows with the token that ends
    documents. If the tokenizer has that one, the start is the same to the network.
    """
    if plan.method.name == "ar" and isinstance(tokenizer, BPETokenizer):
        end = tokenizer.backend.token_to_id(_DOCUMENT_END)
        if end is not None:
            weights["embed.weight"][-1] = weights["embed.weight"][end]


def _provenance(path: Path, chosen: Selection, plan: Plan, step: int | None) -> dict[str, Any]:
    folding = "time layers folded" if plan.folded else "as it is"
    facts = {
        "data": f"unknown (imported from {path.name})",
        "source": path.name,
        "sha256": sha256(path),
        "weights": chosen.weights,
        "detected": f"{NETWORKS[plan.method.name][0]}, {folding}",
        **environment(torch.device("cpu")),
    }
    return facts if step is None else {"step": step, **facts}


@contextmanager
def blaming(path: Path | str) -> Iterator[None]:
    """Errors about a state dict become errors about its file."""
    try:
        yield
    except InputError as error:
        if not error.argument.startswith(("file", "network.", "state dict")):
            raise
        skips = error.argument == "state dict" and error.remedy
        remedy = "--skip PREFIX leaves keys out on purpose" if skips else error.remedy
        raise InputError("file", f"{path}: {error.problem}", remedy) from error
