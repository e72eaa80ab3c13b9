"""What each corruption says of itself."""

from __future__ import annotations

import pytest
import torch

from partita.processes.corruption import CORRUPTIONS, make_corruption
from partita.schedules import make_schedule

SAYS = {  # whether it has times, is a bound, parts tokens, can be recorded as a CUDA graph
    "continuous": (True, True, True, True),
    "discrete": (True, True, True, True),
    "subset": (False, True, True, True),
    "clipped": (False, False, True, True),
    "rate": (True, False, True, True),
    "unweighted": (True, False, True, True),
}


@pytest.mark.parametrize("name", SAYS)
def test_traits(name):
    chosen = make_corruption(name, make_schedule("linear"))
    assert (chosen.timed, chosen.bound, chosen.parts, chosen.recordable) == SAYS[name]
    assert set(SAYS) == set(CORRUPTIONS)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_weights_of_a_grid_of_partitions(schedule):
    """At an end the group that should be empty counts nothing, the other one twice."""
    steps, chosen = 4, make_schedule(schedule)
    index = torch.arange(steps + 1).double()
    alpha = chosen.alpha(index / steps)
    fall = alpha[:-1] - alpha[1:]
    twice = torch.tensor([2.0, 1.0, 1.0, 1.0, 2.0]).double()
    hidden = torch.cat([torch.zeros(1).double(), steps * fall / (1 - alpha[1:])]) * twice
    visible = torch.cat([steps * fall / alpha[:-1], torch.zeros(1).double()]) * twice
    found = make_corruption("discrete", chosen, steps=steps).partition_weights(index)
    torch.testing.assert_close(found[0], hidden)
    torch.testing.assert_close(found[1], visible)
