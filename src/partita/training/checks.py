"""Checks before a run starts, the cheap ones first.

    check_data       does the text exist?
    check_rows       can rows be made of it, and can the method learn from them?
    check_machine    do weights and batches fit on this machine?
    check_folders    are the run's folder and the token cache writable?
    dry_run          does the whole recipe work on a tiny model?
    check_resume     does the folder hold a run of this recipe?

`check_run` calls them in this order, and nothing is written before all have passed. Two checks
need the tokens: `check_tokens`, and `check_resume` with their name. `CheckedTokens` runs them
during tokenization, before the tokens are saved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partita.config.migration import saved_recipe
from partita.config.recipe import Recipe, differences
from partita.contracts.batch import Batch
from partita.data.batches import documents_of
from partita.data.prepared import PrepareCallback, Prepared
from partita.distillation.sdtt import check_student
from partita.errors import InputError, naming, require
from partita.execution.choice import sample
from partita.files import format
from partita.files.atomic import check_folder
from partita.memory import machine_memory
from partita.methods import METHODS
from partita.models import checkpoints
from partita.networks.kinds import kind_of
from partita.parallel import World
from partita.randomness import Noise
from partita.training.callbacks import Callback
from partita.training.data_pipeline import row_length, separator_of
from partita.training.distillation_loss import with_teacher
from partita.training.run_folder import RECIPE

ELSEWHERE = "give --out for a run of its own"
_SHOWN = 8  # how many classes a message names
_TOKEN, _NUMBER = 8, 4  # bytes of a token id, and of a number in float32


def check_run(recipe: Recipe, folder: Path, world: World) -> Recipe:
    """Refuse a run that cannot work; return the recipe, with its teacher's checksum if it has one.

    All processes call this.
    """
    check_data(recipe)
    check_rows(recipe)
    check_machine(recipe, world)
    check_folders(recipe, folder)
    dry_run(recipe)
    recipe = with_teacher(recipe)
    with world.first_works() as first:
        if first:
            check_resume(folder, recipe)
    return recipe


def check_data(recipe: Recipe) -> None:
    """Refuse data that do not exist."""
    recipe.tokenizer.kind.check(recipe.data, recipe.tokenizer)


def check_rows(recipe: Recipe) -> None:
    """Refuse rows that the method cannot learn from, and options that do not apply to the rows."""
    row_length(recipe)
    rows, name = recipe.data.rows, recipe.method.name
    recipe.tokenizer.kind.check_options(recipe.data, recipe.tokenizer)
    whole = not METHODS[name].whole_texts or rows == "padded"
    problem = f"{rows} rows have no ends of their own, and {name} learns where texts end"
    require(whole, "data.rows", problem, "leave it out, or give padded")
    labelled = recipe.data.label is None or rows == "padded"
    problem = f"{rows} rows hold several documents, which may differ in their classes"
    require(labelled, "data.rows", problem, "leave it out, or give padded")
    problem = f"is {recipe.data.longer!r}, but {rows} rows cut no document off"
    padded = recipe.data.longer is None or rows == "padded"
    require(padded, "data.longer", problem, "leave it out, or give --data.rows padded")


def check_machine(recipe: Recipe, world: World) -> None:
    """Refuse weights that do not fit in memory, before they are allocated, and uneven batches."""
    with torch.device("meta"):
        method = recipe.method.build(recipe.network, 2)
    size = sum(parameter.numel() * parameter.itemsize for parameter in method.parameters())
    memory = machine_memory()
    problem = f"its weights take {size >> 30} GiB, this machine has {memory >> 30}"
    require(size <= memory, "network", problem, "choose a smaller network.width or network.depth")
    part = world.share(recipe.training.batch_size, "training.batch_size")
    _check_batch(recipe, part.stop - part.start, memory)


def _check_batch(recipe: Recipe, rows: int, memory: int) -> None:
    """Refuse a batch whose tokens and embeddings alone do not fit in memory."""
    length = row_length(recipe)
    at_once = min(rows, recipe.run.micro_batch or rows)
    size = rows * length * _TOKEN + at_once * length * recipe.network.width * _NUMBER
    problem = f"{rows:,} rows of {length:,} tokens take {size >> 30:,} GiB at the very least"
    problem += f", this machine has {memory >> 30}"
    remedy = "choose a smaller one, or a smaller run.micro_batch"
    require(size <= memory, "training.batch_size", problem, remedy)


def check_folders(recipe: Recipe, folder: Path) -> None:
    """Refuse folders that cannot be written."""
    check_folder(folder, "out")
    if not Path(recipe.data.cache).is_dir():  # a read-only one may hold the tokens already
        check_folder(Path(recipe.data.cache), "data.cache")


def dry_run(recipe: Recipe) -> None:
    """Train and sample once with a tiny model, so that options that do not fit together fail here.

    Otherwise they would fail at the first preview, hours later.
    """
    sizes = {"width": 4, "depth": 1, "heads": 1, "mlp_ratio": 1.0, "condition_width": 2}
    reads = METHODS[recipe.method.name].reads
    name, kind = kind_of(recipe.network, reads)
    options = kind.options.of(recipe.network, name).tiny()
    network = replace(recipe.network, **sizes, options=vars(options))  # type: ignore[arg-type]
    small: Any = recipe.method.build(network, 2)
    length = recipe.network.length if kind.whole else 1
    if recipe.distillation.round:
        _check_teacher(recipe, small)
    try:
        small.loss(Batch.of(torch.zeros(1, length, dtype=torch.int64)), Noise.for_batch(0, 1))
    except TypeError as error:
        raise InputError("method", f"has no loss with these options: {error}") from error
    arguments = recipe.sampling.arguments()
    if not isinstance(arguments.get("order", ""), str):  # the positions of a text of full length
        del arguments["order"]
    names = {"sampler": "sampling.sampler", "steps": "sampling.steps"}
    with naming({name: f"sampling.options.{name}" for name in arguments} | names):
        sample(small, 1, length=length, **arguments)


def _check_teacher(recipe: Recipe, method: object) -> None:
    """Refuse distillation without a teacher, or of a method that SDTT does not apply to."""
    given = recipe.training.start_from is not None
    remedy = "give --from MODEL, or use partita distill"
    require(given, "distillation.round", "a student needs a teacher to start from", remedy)
    check_student(method)
    options = recipe.distillation
    whole = options.student_steps * options.substeps**options.round == options.steps
    problem = f"{options.steps} cannot be divided by {options.substeps} in each round"
    remedy = "give a multiple of that, such as 32 or 64, or fewer rounds: steps are whole"
    require(whole, "distillation.steps", problem, remedy)


# Checks against the folder and the tokens ---------------------------------------------------------


def check_resume(folder: Path, recipe: Recipe, tokens: str | None = None) -> None:
    """Refuse to resume a run with another recipe or another text than it started with.

    A folder without a checkpoint passes. `tokens` is the name of the tokens, once it is known.
    """
    if not checkpoints.listed(folder):
        return
    path = folder / RECIPE
    require(path.exists(), "out", f"{folder} holds checkpoints but no {RECIPE}", ELSEWHERE)
    with naming({"model": "out"}):
        before = format.read_json(path)
        sections = saved_recipe(before, path)
    if not isinstance(sections, dict):
        raise InputError("out", f"{path} is damaged: it lacks the recipe", ELSEWHERE)
    changes = differences(sections, recipe.to_dict())
    if changes:
        lines = "".join(f"\n  {change}" for change in changes)
        own = f" (partita train --from {folder} starts it from these weights)"
        own = "" if recipe.training.start_from else own
        problem = f"{folder} holds a run of another recipe. There -> here:{lines}\n"
        problem += f"Give the same options to go on with it, or --out for a run of its own{own}"
        raise InputError("out", problem)
    same = tokens is None or before.get("tokens") == tokens
    problem = f"{folder} holds a run on another text: the contents of {recipe.data.path} differ"
    require(same, "out", problem, ELSEWHERE)


class CheckedTokens(PrepareCallback):
    """Refuses tokens that do not fit a run while they are prepared, and reports the progress."""

    def __init__(self, recipe: Recipe, folder: Path, callback: Callback) -> None:
        self.recipe, self.folder, self.callback = recipe, folder, callback

    def on_name(self, name: str) -> None:
        check_resume(self.folder, self.recipe, name)

    def on_tokens(self, prepared: Prepared) -> None:
        check_tokens(self.recipe, prepared)

    def on_prepare(self, characters: int) -> None:
        self.callback.on_prepare(characters)

    def on_check(self, done: int, total: int) -> None:
        self.callback.on_check(done, total)


def check_tokens(recipe: Recipe, prepared: Prepared) -> None:
    """Refuse tokens from which the recipe cannot make rows."""
    _check_lengths(recipe, prepared)
    network = recipe.network
    recipe.tokenizer.kind.check_network(prepared.tokenizer, network.length, network.grid)
    _check_classes(recipe, prepared)


def _check_classes(recipe: Recipe, prepared: Prepared) -> None:
    """Check that the network has exactly one label for each class of the data."""
    kind, classes, count = recipe.tokenizer.kind, prepared.train.classes, recipe.network.classes
    if count == 0 and not kind.labels_are_learned:
        return
    few = ", ".join(classes[:_SHOWN]) + (", ..." if len(classes) > _SHOWN else "")
    found = f"the {kind.each}s have {len(classes)} ({few})"
    found = found if classes else f"none of the {kind.each}s has one"
    remedy = "leave it out, or say with data.label what they are"
    remedy = f"give --network.classes {len(classes)}" if classes else remedy
    problem = f"is {count}, but {found}"
    require(count == len(classes), "network.classes", problem, remedy)


def _check_lengths(recipe: Recipe, prepared: Prepared) -> None:
    """Refuse documents that are longer than a row, unless the recipe says what to do with them."""
    if recipe.data.rows != "padded" or recipe.data.longer in (None, "cut"):
        return
    length, separator = row_length(recipe), separator_of(recipe, prepared) or 0
    parts = (prepared.train, prepared.valid)
    sizes = np.concatenate([documents_of(part, separator)[1] for part in parts])
    longer = int((sizes > length).sum())
    if recipe.data.longer == "refuse" and longer:
        key = "network.length" if recipe.training.length is None else "training.length"
        finer = recipe.data.documents != "line"
        shorter = "shorter documents (--data.documents line), " if finer else ""
        problem = f"{longer:,} of {len(sizes):,} documents have more than {length:,} tokens"
        problem += f", the longest {int(sizes.max()):,}"
        remedy = f"give --{key} {int(sizes.max())}, {shorter}or --data.longer cut or skip"
        raise InputError(key, problem, remedy)
    fitting = int((documents_of(prepared.train, separator)[1] <= length).sum())
    problem = f"skip leaves nothing: every document has more than {length:,} tokens"
    require(fitting > 0, "data.longer", problem, "give a larger network.length")
