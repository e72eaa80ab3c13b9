"""Protocols that are checked at run time have methods alone.

From Python 3.12 on, `isinstance` looks the members of a protocol up without `__getattr__`, so that
a submodule of a torch module is not found: a check on data passes on one version and fails on
another. This test fails on all of them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Protocol, runtime_checkable

import pytest
from torch import nn

import partita
from partita.methods.base import METHODS
from partita.methods.contracts import FAMILIES, TextMethod


def data_members(protocol):
    """The members that are no methods, those of the protocols above it included."""
    found = set()
    for base in protocol.__mro__:
        if not getattr(base, "_is_protocol", False) or base is Protocol:
            continue
        named = set(inspect.get_annotations(base))
        named |= {name for name, value in vars(base).items() if isinstance(value, property)}
        found |= {name for name in named if not name.startswith("_")}
    return found


def checked_protocols():
    """Every protocol of the package that `isinstance` accepts."""
    found = set()
    for module in pkgutil.walk_packages(partita.__path__, "partita."):
        if module.name == "partita.__main__" or ".kernels." in module.name:  # needs Triton
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and getattr(value, "_is_runtime_protocol", False):
                found.add(value)
    return {each for each in found if each.__module__.startswith("partita")}


def test_protocols_that_are_checked_at_run_time_have_no_data():
    assert {
        each.__name__: data for each in checked_protocols() if (data := data_members(each))
    } == {}


def test_data_of_a_protocol_is_seen():
    """The check above can fail, whichever way a member is written."""

    class Above(Protocol):
        network: nn.Module

    @runtime_checkable
    class Checked(Above, Protocol):
        @property
        def length(self) -> int: ...

        def loss(self) -> float: ...

    assert data_members(Checked) == {"network", "length"}


@pytest.mark.parametrize("name", list(METHODS))
def test_methods_say_what_they_are(name):
    """By base classes, so that it does not matter where a module keeps its members."""
    method = METHODS[name]
    assert issubclass(method, TextMethod)
    assert issubclass(method, FAMILIES[method.family])
