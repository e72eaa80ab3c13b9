"""Values of the wrong kind, which have errors of their own where no types are checked."""

from __future__ import annotations

import inspect

import pytest
import torch

from partita.errors import InputError
from partita.methods import DDPM
from partita.samplers.gaussian import sample_ddpm


@pytest.mark.parametrize("shape", [2, (2.5,), None])
def test_a_shape_is_a_list_of_sizes(shape):
    model = DDPM(lambda x, t: torch.zeros_like(x), steps=4)  # noqa: ARG005
    with pytest.raises(InputError, match="shape: must be a list of sizes"):
        inspect.unwrap(sample_ddpm)(model, shape)


def test_samples_are_numbered_from_0():
    model = DDPM(lambda x, t: torch.zeros_like(x), steps=4)  # noqa: ARG005
    drawn = sample_ddpm(model, (2,), 3, first=0)
    assert torch.equal(drawn[1:], sample_ddpm(model, (2,), 2, first=1))
    with pytest.raises(InputError, match="first: "):
        sample_ddpm(model, (2,), first=-1)
