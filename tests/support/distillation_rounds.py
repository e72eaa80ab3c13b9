"""Rounds of a distillation on tables."""

from __future__ import annotations

import torch

from partita.distillation import DistillationOptions
from partita.distillation.sdtt import reveal_plan


def first_round(k, steps, divergence="reverse-kl"):
    """Options of a teacher of `steps` steps, whose student takes k of them in one."""
    return DistillationOptions(round=1, steps=steps, substeps=k, divergence=divergence)


def boundaries(t, options, schedule):
    """The uniform numbers from which on a token is queried in step 1, 2, ...: [times, k - 1].

    The step never falls as the number rises, so each boundary is found by bisection.
    """
    found = []
    for step in range(1, options.substeps):
        low, high = torch.zeros_like(t)[:, None], torch.ones_like(t)[:, None]
        for _ in range(45):
            middle = (low + high) / 2
            reached = reveal_plan(t, options, schedule, middle) >= step
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        found.append(high[:, 0])
    return torch.stack(found, -1)
