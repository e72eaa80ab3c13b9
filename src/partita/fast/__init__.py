"""The same numbers, sooner: fused kernels, captured samplers. Everything here has a plain twin."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

KERNELS = find_spec("triton") is not None
"""Whether kernels of our own can run on a GPU; torch brings what they need on most machines."""

F = TypeVar("F", bound=Callable[..., Any])


def plain_softmax(log_probabilities: F) -> F:
    """Mark a parameterisation as the softmax of all outputs but the mask, which kernels know."""
    log_probabilities.plain_softmax = True  # type: ignore[attr-defined]
    return log_probabilities


def has_plain_softmax(method: object) -> bool:
    """Whether kernels can stand in for a method's `log_probabilities`: not for one of its own."""
    return getattr(getattr(method, "log_probabilities", None), "plain_softmax", False)
