"""Names that modules had in the version before."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import partita
from partita.moved import MOVED, NAMES
from partita.samplers import SamplerState, Step


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_names_work_with_a_warning(old):
    if "kernels" in MOVED[old]:
        pytest.importorskip("triton", reason="there is no Triton but on Linux")
    new = importlib.import_module(f"partita.{MOVED[old]}")
    spec = new.__spec__
    sys.modules.pop(f"partita.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"partita.{old} is partita.{MOVED[old]} now"):
        assert importlib.import_module(f"partita.{old}") is new
    assert new.__spec__ is spec


def test_what_lies_inside_of_a_package_that_moved():
    from partita.models.published.stored import Stored

    with pytest.warns(DeprecationWarning, match="partita.models.published.stored now"):
        inside = importlib.import_module("partita.hub.published.stored")
    assert inside.Stored is Stored


def test_what_moved_out_of_a_module():
    from partita.contracts.loss import Loss

    base = importlib.import_module("partita.methods.base")
    with pytest.warns(DeprecationWarning, match="is partita.contracts.loss.Loss now"):
        assert base.Loss is Loss
    with pytest.raises(AttributeError, match="has no attribute 'Gain'"):
        base.Gain  # noqa: B018


def test_what_the_library_offers_by_another_name():
    with pytest.warns(DeprecationWarning, match="partita.run_recipe is partita.train now"):
        assert partita.run_recipe is partita.train
    with pytest.warns(DeprecationWarning, match="partita.generate is partita.sample_ddpm now"):
        assert partita.generate is partita.sample_ddpm


def test_the_state_of_a_step_by_its_old_name():
    state = SamplerState.blank(1, 2, 3)
    rows = torch.zeros(0, dtype=torch.int64)
    step = Step(0, 1, state, rows, rows)
    with pytest.warns(DeprecationWarning, match="Step.canvas is Step.state now"):
        assert step.canvas is state


@pytest.mark.parametrize(("module", "name"), sorted(NAMES))
def test_old_names_inside_of_modules_work_with_a_warning(module, name):
    place, _, new = f"partita.{NAMES[module, name]}".rpartition(".")
    where = importlib.import_module("partita" if module == "partita" else f"partita.{module}")
    with pytest.warns(DeprecationWarning, match=f"is {place}.{new} now"):
        found = getattr(where, name)
    assert found is getattr(importlib.import_module(place), new)
    assert name not in getattr(where, "__all__", ())


def test_the_library_uses_new_names_alone():
    code = "import warnings; warnings.simplefilter('error'); import partita, partita.commands; "
    code += "[getattr(partita, name) for name in partita.__all__]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "is partita." not in done.stderr, done.stderr


def test_no_old_name_has_a_module_of_its_own():
    for old in MOVED:
        found = importlib.util.find_spec(f"partita.{MOVED[old]}")
        assert found is not None, old
