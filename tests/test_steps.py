"""Quality against steps: the shares that steps reveal, and the pictures."""

from __future__ import annotations

import pytest
import torch

from partita.evaluation.steps import Quality, draw_comparison, revealed
from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from partita.samplers import sample

LENGTH, STEPS = 2000, 5


@pytest.mark.parametrize("schedule", ["linear", "cosine", "arccos", "log-linear"])
def test_shares_that_steps_reveal(schedule):
    """As those of a sampler that fills many positions."""
    shares = torch.tensor(revealed(schedule, STEPS), dtype=torch.float64)
    assert float(shares.sum()) == pytest.approx(1)
    sizes = TransformerOptions(length=LENGTH, width=8, depth=1, heads=1)
    counts = torch.zeros(STEPS)

    def count(step):
        counts[step.index] += len(step.rows)

    model = METHODS["mdlm"].build(sizes, 2)
    sample(model, 2, steps=STEPS, schedule=schedule, callback=count, seed=1)
    found = counts / (2 * LENGTH)
    error = (shares * (1 - shares) / (2 * LENGTH)).sqrt()
    assert bool(((found - shares).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("timed", [False, True])
def test_the_picture(timed, tmp_path):
    rows = [Quality("a", n, 2.0 + 1 / n, 0.1, 2.5, 0.1, 100.0 / n) for n in (4, 8)]
    draw_comparison(rows, tmp_path / "steps.png", timed=timed)
    assert (tmp_path / "steps.png").read_bytes()[:4] == b"\x89PNG"
