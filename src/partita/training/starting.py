"""The model that a run starts from (`--from`), if one is given."""

from __future__ import annotations

from pathlib import Path

from partita.config.recipe import Recipe, flatten
from partita.errors import require
from partita.models.assembling import build
from partita.models.trained import TrainedModel, load
from partita.training.conversion import check_conditions, converted, is_conversion, may_change

# What a model that is trained further must keep, except a key that no weight depends on.
_KEPT = ("method.name", "method.conditioning", "method.options.", "tokenizer.", "network.")
_FREE = {"network.dropout"}


def starting_model(recipe: Recipe) -> TrainedModel | None:
    """The model to start from, if one is given; its weights must fit the recipe's network."""
    path = recipe.training.start_from
    if path is None:
        return None
    model = load(path, device="cpu")
    check_same_model(recipe, model.recipe, path)
    if is_conversion(recipe, model.recipe):
        method = converted(recipe, model)
    else:
        weights = model.contents()["model.safetensors"]
        method = build(recipe, model.tokenizer, weights, Path(path))
    kind = type(model)
    return kind(method, model.tokenizer, recipe, model.provenance, model.terms)


def check_same_model(recipe: Recipe, base: Recipe, path: str) -> None:
    """Refuse a recipe that changes the method, the network or the tokenizer of its start.

    A conversion may change the method, and the length, which no weight depends on.
    """
    free = set(_FREE)
    ours, theirs = flatten(recipe.to_dict()), flatten(base.resolved().to_dict())
    if is_conversion(recipe, base):
        check_conditions(recipe, base, path)
        free |= {key for key in ours if key.startswith(may_change(recipe))}
    for key in ours:
        if not key.startswith(_KEPT) or key in free:
            continue
        mine, its = ours[key], theirs.get(key)
        problem = f"is {mine!r}, but the model of {path} has {its!r}, which training cannot change"
        require(mine == its, key, problem, "leave it out")
