"""From a recipe's text to rows in the order in which a run reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from partita.config.recipe import Recipe
from partita.data.any_tokenizer import AnyTokenizer
from partita.data.batches import Order, documents_of
from partita.data.checking import Progress
from partita.data.kinds import Preparing
from partita.data.prepared import Prepared
from partita.errors import InputError, require
from partita.methods import METHODS
from partita.methods.base import is_flexible
from partita.training.rehearsal import row_length

_SHOWN = 8  # classes that a message names


def tokens_of(
    recipe: Recipe,
    tokenizer: AnyTokenizer | None,
    accept: Callable[[str], None],
    progress: Callable[[int], None],
    checking: Progress | None = None,
) -> Prepared:
    """The recipe's data as tokens, if its rows can be made of them.

    `progress` and `checking` are called as by `prepare`. A `tokenizer`, that of a model which is
    trained further, takes the place of the recipe's.
    """
    how = Preparing(
        accept=accept,
        examine=partial(_examine, recipe),
        progress=progress,
        checking=checking,
        least=row_length(recipe) if recipe.data.rows == "packed" else 1,
    )
    return recipe.tokenizer.kind.prepare(recipe.data, recipe.tokenizer, tokenizer, how)


def orders(recipe: Recipe, prepared: Prepared) -> tuple[Order, Order | None]:
    """The training rows in their order, and the validation rows if there are any."""
    options, length = recipe.training, row_length(recipe)
    separator = _separator(recipe, prepared)
    rows = recipe.data.row_source(prepared.train, length, separator)
    order = Order(rows, options.batch_size, options.seed)
    if len(prepared.valid) < (length if recipe.data.rows == "packed" else 1):
        return order, None
    held_out = recipe.data.row_source(prepared.valid, length, separator)
    return order, Order(held_out, options.batch_size, 0) if len(held_out) else None


def left_out(recipe: Recipe, prepared: Prepared) -> int:
    """How many documents are longer than a row and skipped."""
    if recipe.data.longer != "skip":
        return 0
    separator = _separator(recipe, prepared) or 0
    parts = (prepared.train, prepared.valid)
    longer = [documents_of(part, separator)[1] > row_length(recipe) for part in parts]
    return int(sum(found.sum() for found in longer))


def _separator(recipe: Recipe, prepared: Prepared) -> int | None:
    """Where a model knows ends by itself, nothing has to stand between texts."""
    if not is_flexible(METHODS[recipe.method.name]):
        return None
    return recipe.tokenizer.kind.separator(recipe.data, prepared.tokenizer)


def _examine(recipe: Recipe, prepared: Prepared) -> None:
    """Refuse tokens that the recipe cannot make its rows of."""
    _refuse_longer(recipe, prepared)
    kind = recipe.tokenizer.kind
    kind.check_network(prepared.tokenizer, recipe.network.length, recipe.network.grid)
    classes, told = prepared.train.classes, recipe.network.classes
    if told == 0 and not kind.labels_are_learned:
        return
    few = ", ".join(classes[:_SHOWN]) + (", ..." if len(classes) > _SHOWN else "")
    all_of_them = f"the {kind.each}s"
    found = f"{all_of_them} have {len(classes)} ({few})"
    found = found if classes else f"none of {all_of_them} has one"
    remedy = "leave it out, or say with data.label what they are"
    remedy = f"give --network.classes {len(classes)}" if classes else remedy
    problem = f"is {told}, but {found}"
    require(told == len(classes), "network.classes", problem, remedy)


def _refuse_longer(recipe: Recipe, prepared: Prepared) -> None:
    """Documents that do not fit in a row: say how many there are, and what can be done."""
    if recipe.data.rows != "padded" or recipe.data.longer in (None, "cut"):
        return
    length, separator = row_length(recipe), _separator(recipe, prepared) or 0
    parts = (prepared.train, prepared.valid)
    sizes = np.concatenate([documents_of(part, separator)[1] for part in parts])
    longer = int((sizes > length).sum())
    if recipe.data.longer == "refuse" and longer:
        key = "network.length" if recipe.training.length is None else "training.length"
        finer = recipe.data.documents != "line"
        shorter = "shorter documents (--data.documents line), " if finer else ""
        raise InputError(
            key,
            f"{longer:,} of {len(sizes):,} documents have more than {length:,} tokens, the longest "
            f"{int(sizes.max()):,}",
            f"give --{key} {int(sizes.max())}, {shorter}or --data.longer cut or skip",
        )
    fitting = int((documents_of(prepared.train, separator)[1] <= length).sum())
    problem = f"skip leaves nothing: every document has more than {length:,} tokens"
    require(fitting > 0, "data.longer", problem, "give a larger network.length")
