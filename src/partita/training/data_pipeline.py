"""The data pipeline of a run: from a recipe's text to rows in training order."""

from __future__ import annotations

from partita.config.recipe import Recipe
from partita.data.any_tokenizer import AnyTokenizer
from partita.data.batches import Order, documents_of
from partita.data.prepared import PrepareCallback, Prepared
from partita.errors import require
from partita.methods import METHODS


def row_length(recipe: Recipe) -> int:
    """Number of tokens in a training row."""
    length, most = recipe.training.length or recipe.network.length, recipe.network.length
    problem = f"{length} is longer than the network's {most}"
    require(length <= most, "training.length", problem, "give less, or a larger network.length")
    return length


def tokens_of(
    recipe: Recipe, tokenizer: AnyTokenizer | None = None, callback: PrepareCallback | None = None
) -> Prepared:
    """The recipe's data as tokens, tokenized now or read from the cache.

    `tokenizer`, that of a model being trained further, replaces the recipe's.
    """
    callback = callback or PrepareCallback()
    callback.least = row_length(recipe) if recipe.data.rows == "packed" else 1
    return recipe.tokenizer.kind.prepare(recipe.data, recipe.tokenizer, tokenizer, callback)


def orders(recipe: Recipe, prepared: Prepared) -> tuple[Order, Order | None]:
    """The training rows in order, and the validation rows if there are any."""
    options, length = recipe.training, row_length(recipe)
    separator = separator_of(recipe, prepared)
    rows = recipe.data.row_source(prepared.train, length, separator)
    order = Order(rows, options.batch_size, options.seed)
    if len(prepared.valid) < (length if recipe.data.rows == "packed" else 1):
        return order, None
    held_out = recipe.data.row_source(prepared.valid, length, separator)
    return order, Order(held_out, options.batch_size, 0) if len(held_out) else None


def left_out(recipe: Recipe, prepared: Prepared) -> int:
    """Number of documents that are skipped because they are longer than a row."""
    if recipe.data.longer != "skip":
        return 0
    separator = separator_of(recipe, prepared) or 0
    parts = (prepared.train, prepared.valid)
    longer = [documents_of(part, separator)[1] > row_length(recipe) for part in parts]
    return int(sum(found.sum() for found in longer))


def separator_of(recipe: Recipe, prepared: Prepared) -> int | None:
    """The token between documents, if rows leave it out: for models that learn ends by themselves.

    None if rows keep whatever stands between documents.
    """
    if not METHODS[recipe.method.name].whole_texts:
        return None
    return recipe.tokenizer.kind.separator(recipe.data, prepared.tokenizer)
