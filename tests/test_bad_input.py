"""Bad input: one clear error each, which names the argument."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from partita.errors import InputError
from partita.methods import AR
from partita.networks import CausalTransformer
from partita.samplers import sample
from tests.support.bad_input import TABLE, mdlm, network


@pytest.fixture(scope="module")
def outcomes():
    """What every call of the table led to, without the test run's type checker."""
    command = [sys.executable, "-m", "tests.support.bad_input"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_names_the_argument(name, outcomes):
    argument, message = outcomes[name]
    assert argument == TABLE[name][1], message
    assert message.startswith(f"{argument}: ")
    assert "\n" not in message


def test_an_unknown_name_lists_the_known_ones():
    known = r"did you mean 'ancestral'\? known: analytic, ancestral, "
    with pytest.raises(InputError, match=known):
        sample(mdlm(), sampler="ancestal")


def test_a_misfit_sampler_lists_those_that_fit():
    with pytest.raises(InputError, match="these do: autoregressive"):
        sample(AR(network(CausalTransformer)), sampler="ancestral")


def test_unknown_options_list_those_that_exist():
    with pytest.raises(InputError, match="'discrete' does not take 'stps'; it takes: steps"):
        mdlm(corruption="discrete", stps=3)
    with pytest.raises(InputError, match="it takes: steps, schedule, grid"):
        sample(mdlm(), stps=3)
