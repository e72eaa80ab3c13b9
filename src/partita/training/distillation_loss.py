"""The distillation loss: a student learns its teacher's predictions, not its method's own loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from partita.config.recipe import Recipe
from partita.contracts.loss import Loss
from partita.distillation.options import DistillationOptions
from partita.distillation.sdtt import SDTT
from partita.files import format
from partita.models.find import read_found
from partita.parallel import World


def with_teacher(recipe: Recipe) -> Recipe:
    """The recipe with its teacher's checksum, so that a run resumes with the same teacher only."""
    start = recipe.training.start_from
    if recipe.distillation.round == 0 or start is None:
        return recipe
    checksum = read_found(format.verify, start)[format.WEIGHTS]
    return replace(recipe, distillation=replace(recipe.distillation, teacher=checksum))


def distillation_loss(
    recipe: Recipe, method: nn.Module, world: World
) -> Callable[..., Loss] | None:
    """The loss of a student, which starts as a copy of its teacher; None without distillation."""
    if recipe.distillation.round == 0:
        return None
    teacher = copy.deepcopy(method).to(world.device)
    return SDTT(method, teacher, recipe.distillation).loss  # type: ignore[arg-type]


def work_of(options: DistillationOptions) -> float:
    """Work of a step relative to training without a teacher, which runs forward passes only."""
    return 1 + options.substeps / 3 if options.round else 1.0
