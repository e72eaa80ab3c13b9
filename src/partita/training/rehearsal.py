"""Before a run: does everything that its recipe asks for fit together?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from partita.config.recipe import Recipe, flatten
from partita.distillation.sdtt import check_student
from partita.errors import InputError, naming, require
from partita.execution.choice import sample
from partita.memory import machine_memory
from partita.methods import METHODS
from partita.methods.base import is_flexible
from partita.randomness import Noise
from partita.training.retrofit import is_retrofit, may_change, refuse_conditions


def rehearse(recipe: Recipe) -> None:
    """Everything that a recipe asks for, once, on a network of next to no size.

    What does not fit together is found before anything is read or made, not at the first preview.
    """
    row_length(recipe)
    _check_rows(recipe)
    _check_size(recipe)
    decoder = replace(recipe.network.decoder, depth=None, width=None, heads=None)
    sizes = {"width": 4, "depth": 1, "heads": 1, "mlp_ratio": 1.0, "condition_width": 2}
    network = replace(recipe.network, **sizes, decoder=decoder)  # type: ignore[arg-type]
    small: Any = recipe.method.build(network, 2)
    # Networks of pixels read whole images alone.
    length = 1 if recipe.network.kind == "transformer" else recipe.network.length
    if recipe.distillation.round:
        _check_teacher(recipe, small)
    try:
        small.loss(torch.zeros(1, length, dtype=torch.int64), Noise.for_batch(0, 1))
    except TypeError as error:
        raise InputError("method", f"has no loss with these options: {error}") from error
    options = recipe.sampling.arguments()
    if not isinstance(options.get("order", ""), str):  # the positions of a text of full length
        del options["order"]
    names = {"sampler": "sampling.sampler", "steps": "sampling.steps"}
    with naming({name: f"sampling.options.{name}" for name in options} | names):
        sample(small, 1, length=length, **options)


def _check_teacher(recipe: Recipe, method: object) -> None:
    """Refuse a distillation without a teacher, or of a method that cannot learn from itself."""
    given = recipe.training.start_from is not None
    remedy = "give --from MODEL, or use partita distill"
    require(given, "distillation.round", "a student needs a teacher to start from", remedy)
    check_student(method)
    options = recipe.distillation
    whole = options.student_steps * options.substeps**options.round == options.steps
    problem = f"{options.steps} cannot be divided by {options.substeps} in each round"
    remedy = "give a multiple of that, such as 32 or 64, or fewer rounds: steps are whole"
    require(whole, "distillation.steps", problem, remedy)


def _check_rows(recipe: Recipe) -> None:
    """Refuse rows that the method cannot learn from, and choices that rows do not have."""
    rows, name = recipe.data.rows, recipe.method.name
    recipe.tokenizer.kind.check_options(recipe.data, recipe.tokenizer)
    whole = not is_flexible(METHODS[name]) or rows == "padded"
    problem = f"{rows} rows have no ends of their own, and {name} learns where texts end"
    require(whole, "data.rows", problem, "leave it out, or give padded")
    labelled = recipe.data.label is None or rows == "padded"
    problem = f"{rows} rows hold several documents, which may differ in their classes"
    require(labelled, "data.rows", problem, "leave it out, or give padded")
    problem = f"is {recipe.data.longer!r}, but {rows} rows cut no document off"
    padded = recipe.data.longer is None or rows == "padded"
    require(padded, "data.longer", problem, "leave it out, or give --data.rows padded")


def _check_size(recipe: Recipe) -> None:
    """Refuse weights that the machine's memory does not hold, before any are made."""
    with torch.device("meta"):
        method = recipe.method.build(recipe.network, 2)
    size = sum(parameter.numel() * parameter.itemsize for parameter in method.parameters())
    memory = machine_memory()
    problem = f"its weights take {size >> 30} GiB, this machine has {memory >> 30}"
    require(size <= memory, "network", problem, "choose a smaller network.width or network.depth")


def row_length(recipe: Recipe) -> int:
    """Tokens of a training row."""
    length, most = recipe.training.length or recipe.network.length, recipe.network.length
    problem = f"{length} is longer than the network's {most}"
    require(length <= most, "training.length", problem, "give less, or a larger network.length")
    return length


def refuse_contradictions(recipe: Recipe, base: Recipe, path: str) -> None:
    """A model that is trained further keeps its method, its network and its tokenizer.

    One whose method changes keeps the rest, but for its length, which no weight depends on.
    """
    free = {"network.dropout"}
    ours, theirs = flatten(recipe.to_dict()), flatten(base.to_dict())
    if is_retrofit(recipe, base):
        refuse_conditions(recipe, base, path)
        free |= {key for key in ours if key.startswith(may_change(recipe))}
    kept = ("method.name", "method.conditioning", "method.options.", "tokenizer.", "network.")
    for key in ours:
        if not key.startswith(kept) or key in free:
            continue
        mine, its = ours[key], theirs.get(key)
        problem = f"is {mine!r}, but the model of {path} has {its!r}, which training cannot change"
        require(mine == its, key, problem, "leave it out")
