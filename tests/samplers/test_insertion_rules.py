"""How many masks each rule inserts, from its formula: the first number of a gap decides alone."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from partita.networks.flexible import Answer
from partita.processes.insertion import Interpolant
from partita.samplers.insertion_rules import RULES
from partita.schedules import make_schedule

T, S = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
GAPS = torch.tensor([0.0, 0.4, 2.0, 7.5])
U = torch.tensor([0.01, 0.3, 0.6, 0.99], dtype=torch.float64)
RATE = 0.2 / 0.7  # (t - s) / t under the linear schedule


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        ("schedule", lambda gap, u: int(u < 1 - (1 - RATE) ** gap)),
        ("euler", lambda gap, u: int(u < RATE * gap)),
        ("tau-leaping", lambda gap, u: int(stats.poisson.ppf(u, RATE * gap)) if gap else 0),
    ],
)
def test_insertions(rule, count):
    process = Interpolant(make_schedule("linear"), make_schedule("linear"))
    gaps, u = torch.cartesian_prod(GAPS.double(), U).unbind(-1)
    answer = Answer(torch.zeros(0, 3), gaps.float(), None)
    expected = [count(float(gap), float(number)) for gap, number in zip(gaps, u, strict=True)]
    for second in (u.flip(0), torch.zeros_like(u), torch.full_like(u, 0.999)):
        found = RULES[rule]().inserted(process, T, S, answer, torch.stack([u, second], -1))
        assert found.tolist() == expected


@pytest.mark.parametrize(
    ("rule", "chance"), [("schedule", 2 / 7), ("euler", 2 / 7), ("tau-leaping", 0.2485)]
)
def test_chances_of_revealing(rule, chance):
    """(t - s) / t, that rate, and 1 - exp(-rate)."""
    process = Interpolant(make_schedule("linear"), make_schedule("linear"))
    assert float(RULES[rule]().reveal(process, T, S)) == pytest.approx(chance, abs=1e-4)
