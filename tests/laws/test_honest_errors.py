"""Estimates of bounds are off by as much as their standard errors say, for every kind of loss."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from tests.laws.honesty import CASES, NOTICED, PLANTS

# Whatever passes is caught with a factor of 1.25 in it. The ratio of a mean square to another is
# known to 3.7 % here: an honest error that fails has gone three standard deviations astray.
TOLERANCE = math.sqrt(NOTICED)


def found(kind: str) -> dict[str, dict]:
    """The cases, or the plants, with all of their estimates."""
    words = [sys.executable, "-m", "tests.laws.honesty", kind]
    root = Path(__file__).parents[2]
    run = subprocess.run(words, capture_output=True, text=True, check=True, cwd=root)
    return json.loads(run.stdout)


def stretch(case, factor=1.0) -> float:
    """How large errors are, in units of `factor` times their standard errors: 1 for honest ones.

    Root mean squares: a variance of few replicates is right on average, its root is not.
    """
    off = torch.tensor(case["nats"]).double() - case["exact"]
    errors = factor * torch.tensor(case["errors"]).double()
    return float((off.square().mean() / errors.square().mean()).sqrt())


def honest(ratio: float) -> bool:
    return 1 / TOLERANCE < ratio < TOLERANCE


def test_errors_are_what_is_said_of_them_and_not_a_quarter_more_or_less():
    cases = found("cases")
    assert list(cases) == list(CASES)
    for name, case in cases.items():
        nats = torch.tensor(case["nats"]).double()
        off = float(nats.mean()) - case["exact"]
        assert abs(off) < 4 * float(nats.std()) / math.sqrt(len(nats)), name
        assert honest(stretch(case)), f"{name}: {stretch(case):.3f}"
        for factor in (NOTICED, 1 / NOTICED):
            assert not honest(stretch(case, factor)), f"{name}, {factor}"


def test_wrong_errors_of_the_library_are_noticed():
    ratios = {name: stretch(case) for name, case in found("plants").items()}
    assert set(ratios) == set(PLANTS)
    assert not any(map(honest, ratios.values())), ratios
