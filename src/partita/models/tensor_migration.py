"""Tensors of earlier formats get today's names and shapes when a file is read.

The manifest of a model or a checkpoint says in which format its tensors are (`files/format.py`).
Reading one applies the steps from that format on, one after the other, to the weights as well as
to what an optimizer keeps of them. (Recipes have steps of their own: `config/migration.py`.)

A tensor that gets another name, shape or meaning gets a step at the end of `STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from partita.config.recipe import Recipe
from partita.files.format import FORMAT

Tensors = dict[str, Tensor]


def _one_set_of_registers(tensors: Tensors, recipe: Recipe) -> Tensors:
    """Each group of a partition network had registers of its own: [2 R, W], group 0's first.

    Tokens that sampling had revealed were of group 0, and outside of training both groups read its
    registers: they alone are kept.
    """
    count = recipe.network.registers

    def halved(name: str, tensor: Tensor) -> Tensor:
        two_sets = name.endswith("network.registers") and tensor.shape[:1] == (2 * count,)
        return tensor[:count].clone() if two_sets and count else tensor

    return {name: halved(name, tensor) for name, tensor in tensors.items()}


STEPS: Mapping[int, Callable[[Tensors, Recipe], Tensors]] = {1: _one_set_of_registers}
"""The step from each format to the next. A format has one step, and the last one has none."""


def migrated(tensors: Tensors, recipe: Recipe, version: int) -> Tensors:
    """The tensors of a file in today's format; the recipe is the model's."""
    for number in range(version, FORMAT):
        tensors = STEPS[number](tensors, recipe)
    return tensors
