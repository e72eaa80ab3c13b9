"""The times that a model conditioned on them is given: those at which as much is visible."""

from __future__ import annotations

import pytest
import torch

from partita.methods import MD4
from partita.samplers import sample
from tests.laws.tables import MASK, VOCAB, TableNetwork

LENGTH = 6


class Asked(MD4):
    """Writes down the time of every query."""

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):
        self.times.append(time.tolist())
        return super().predict(tokens, revealed, rows, positions, time, label)


@pytest.mark.parametrize(
    ("sampler", "options", "visible"),
    [
        ("confidence", {"steps": 3, "counts": "linear"}, [0, 2 / 6, 4 / 6]),
        ("confidence", {"steps": 3, "counts": [1, 4, 1]}, [0, 1 / 6, 5 / 6]),
        ("threshold", {"threshold": 2.0}, [n / 6 for n in range(6)]),
        ("ordered", {"steps": 3, "order": "left-to-right"}, [0, 2 / 6, 4 / 6]),
        ("ordered", {"steps": 4, "order": "left-to-right"}, [0, 2 / 6, 4 / 6, 5 / 6]),
        ("halton", {"steps": 3, "counts": "linear"}, [0, 2 / 6, 4 / 6]),
    ],
)
def test_times_are_those_of_the_visible_share(sampler, options, visible):
    """Under the linear schedule, 1 - alpha = t."""
    table = torch.zeros((VOCAB + 1) ** LENGTH, LENGTH, VOCAB, dtype=torch.float64)
    model = Asked(TableNetwork(table, 0.5), mask_id=MASK, schedule="linear")
    model.times = []
    sample(model, 2, sampler=sampler, **options)
    expected = torch.tensor([[1 - share] * 2 for share in visible], dtype=torch.float64)
    torch.testing.assert_close(torch.tensor(model.times, dtype=torch.float64), expected)
