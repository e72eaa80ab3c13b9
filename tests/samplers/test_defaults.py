"""What a sampler does unless it is told otherwise: other defaults are other samples."""

from __future__ import annotations

import inspect

import pytest

from partita.samplers import SAMPLERS
from partita.samplers.base import Sampler, default_sampler

DEFAULTS = {
    "analytic": {"steps": 128, "grid": "uniform"},
    "ancestral": {"steps": 128, "schedule": None, "grid": "uniform"},
    "confidence": {
        "steps": 16,
        "counts": "cosine",
        "confidence": "probability",
        "noise_temperature": 0.0,
    },
    "ddim": {"steps": 64, "eta": 0.0, "rounding": "softmax", "repeats": 1},
    "ddpm": {"steps": None, "variance": "small", "rounding": "softmax", "repeats": 1},
    "halton": {"steps": 32, "counts": "arccos", "columns": None, "roll": False},
    "insertion": {"steps": 128, "grid": "uniform", "rule": "schedule", "confidence": None},
    "ordered": {"steps": None, "order": "random"},
    "reverse": {"steps": 128, "grid": "uniform"},
    "tau-leaping": {"steps": 128, "grid": "uniform"},
    "threshold": {"threshold": 0.9, "confidence": "probability"},
}
OF_FAMILIES = {
    "causal": "autoregressive",
    "chain": "reverse",
    "flexible": "insertion",
    "gaussian": "ddpm",
    "masked": "ancestral",
    "score": "analytic",
}
PLANNED = {"ancestral", "first-hitting", "halton", "ordered"}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    parameters = inspect.signature(SAMPLERS[name].run).parameters
    assert {option: parameters[option].default for option in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize("family", OF_FAMILIES)
def test_a_family_has_one_default(family):
    assert default_sampler(family) == OF_FAMILIES[family]


@pytest.mark.parametrize("name", [*DEFAULTS, "autoregressive", "blocks", "first-hitting"])
def test_planned_are_those_that_the_guide_names(name):
    assert SAMPLERS[name].planned == (name in PLANNED)


def test_a_sampler_of_your_own_is_no_default_and_not_planned():
    sampler = Sampler("masked", lambda context, state: state.tokens)  # noqa: ARG005
    assert not sampler.default
    assert not sampler.planned
