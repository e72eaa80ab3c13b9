"""Which step of a grid a jump falls into, also where it lies on the border of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.planned import ancestral
from partita.samplers.state import SamplerState
from tests.laws.tables import MASK, VOCAB, table_mdlm

JUMPS = [0.0, 0.125, 0.25, 0.49, 0.5, 0.75, 0.99]
STEPS = [0, 0, 1, 1, 2, 3, 3]


@dataclass(frozen=True)
class Given(Noise):
    """Noise whose jumps are given."""

    def uniform(self, purpose, step, positions):  # noqa: ARG002
        return torch.tensor([JUMPS], dtype=torch.float64)


def test_a_jump_falls_into_the_step_whose_interval_holds_it():
    """Intervals of alpha hold their lower ends: four quarters under the linear schedule."""
    length, when = len(JUMPS), {}
    model = table_mdlm(torch.zeros((VOCAB + 1) ** length, length, VOCAB, dtype=torch.float64))
    noise = Given(0, torch.zeros(1, dtype=torch.int64))
    context = SamplingContext(
        model,
        noise,
        callback=lambda step: when.update(dict.fromkeys(step.positions.tolist(), step.index)),
    )
    ancestral(context, SamplerState.blank(1, length, MASK), steps=4, schedule="linear")
    assert [when[position] for position in range(length)] == STEPS
