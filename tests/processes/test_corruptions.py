"""What each corruption says of itself."""

from __future__ import annotations

import pytest

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
