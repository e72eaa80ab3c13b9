"""Steps of a Gaussian process that are taken again: each draw has noise of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from partita.processes.gaussian import gaussian, make_process
from partita.randomness import Noise, Purpose
from partita.samplers.gaussian import descend, step

PATH, STEPS = [8, 5, 2, 0], 8


@dataclass(frozen=True)
class Written(Noise):
    """Noise that writes down the step of every draw."""

    steps: list = field(default_factory=list)

    def normal(self, purpose, step, positions):
        self.steps.append(step)
        return super().normal(purpose, step, positions)


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_no_two_draws_share_an_address(repeats):
    """Nor with the start, whose address is the number of steps; nothing is drawn in vain."""
    noise = Written(0, torch.arange(2))
    process = make_process("cosine", STEPS)
    x = torch.zeros(2, 3, dtype=torch.float64)
    descend(process, lambda x, _t: x / 2, x, noise, PATH, repeats=repeats)
    assert len(noise.steps) == (2 * repeats - 1) * (len(PATH) - 1)
    assert all(isinstance(number, int) and number >= 0 for number in noise.steps)
    assert len({*noise.steps, STEPS}) == len(noise.steps) + 1


def test_a_step_is_undone_by_the_forward_process():
    """Two repeats of one step, written out."""
    process, noise = make_process("cosine", STEPS), Noise.for_batch(5, 2)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    s, t = torch.full((2,), 2), torch.full((2,), 5)

    def drawn(address):
        return gaussian(noise, Purpose.STATE, address, x)

    first = step(process, x, x / 2, s, t, drawn(2))
    again = process.transition(first, s, t, drawn(2 + (STEPS + 1)))
    expected = step(process, again, again / 2, s, t, drawn(2 + 2 * (STEPS + 1)))
    found = descend(process, lambda x, _t: x / 2, x, noise, [5, 2], repeats=2)
    assert torch.equal(found, expected)
