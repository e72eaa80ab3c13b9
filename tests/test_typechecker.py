"""The type checker of the test run refuses what jaxtyping's own refuses, and nothing else."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from torch import Tensor

import partita
from partita.contracts.prompt import Prompt
from partita.schedules.grids import uniform_grid
from tests.support import typechecker
from tests.support.shapes import _by_jaxtyping, fits, plan_of

if TYPE_CHECKING:
    from nowhere import Unknown

SHAPES = ["", "B", "B L", "B _", "B 2", "*n", "*n B", "*m L 2", "B L+1", "#B L", "...", "... L"]
HINTS = [kind[Tensor, shape] for kind in (Float, Int64, Shaped) for shape in SHAPES]
SIZES = [(), (1,), (2,), (3,), (2, 2), (2, 3), (3, 2), (1, 2), (2, 3, 2), (0, 3)]
VALUES = [torch.zeros(size, dtype=kind) for size in SIZES for kind in (torch.float64, torch.int64)]
NO_TENSORS = [None, 3, [1.0], torch.zeros(2).numpy(), torch.nn.Parameter(torch.zeros(2))]


def outcomes(decide, checks):
    """What is decided of values one after the other, in one call of a function."""
    found = []
    with jaxtyping.jaxtyped("context"):
        for hint, value in checks:
            try:
                found.append(decide(hint, value))
            except jaxtyping.AnnotationError:  # an unknown name in L+1
                found.append("unknown")
    return found


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.__name__)
def test_shapes_fit_as_jaxtyping_says(hint):
    """Also with the names that earlier values have given a size."""
    for value in (*VALUES, *NO_TENSORS):
        alone = [(hint, value)]
        assert outcomes(fits, alone) == outcomes(_by_jaxtyping, alone)
    after = [Float[Tensor, "B L"], Int64[Tensor, "B"], Float[Tensor, "*n"], Int64[Tensor, "*m 2"]]
    for first, one, other in itertools.product(after, VALUES[::3], VALUES):
        checks = [(first, one), (hint, other), (first, other), (hint, one)]
        assert outcomes(fits, checks) == outcomes(_by_jaxtyping, checks)


def test_most_shapes_are_decided_without_jaxtyping():
    decided = [plan_of(Float[Tensor, shape]) is not None for shape in SHAPES]
    assert decided == [True] * 8 + [False] * 4
    hint = Float[Tensor, "B L"]
    assert [isinstance(value, hint) for value in VALUES] == [fits(hint, value) for value in VALUES]


def sums(
    one: Float[Tensor, "B L"], other: Float64[Tensor, "*n"], *, count: int | None = None
) -> Float[Tensor, "B"]:
    return one.sum(1) if count is None else other


def plain(number: float, names: list[str], unknown: Unknown = None) -> str:
    return names[0] if unknown is None else unknown * (number > 0)


def repeated(values: list[Int[Tensor, "N"]] | None, length: int) -> Int[Tensor, "{length}"]:
    return torch.zeros(length, dtype=torch.int64) if values is None else values[0]


def both(function):
    return [
        each(function, typechecker=typechecker.check)
        for each in (typechecker._by_jaxtyping, typechecker.jaxtyped)
    ]


MATRIX, VECTOR = torch.zeros(2, 3), torch.zeros(2, dtype=torch.float64)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], bool]] = [
    (sums, (MATRIX, VECTOR), {}, True),
    (sums, (MATRIX, VECTOR), {"count": 1}, True),
    (sums, (MATRIX, torch.zeros(3, dtype=torch.float64)), {"count": 1}, False),  # no [B]
    (sums, (MATRIX, MATRIX), {}, False),
    (sums, (VECTOR, VECTOR), {}, False),
    (sums, (MATRIX, VECTOR), {"count": "1"}, False),
    (plain, (1, ["a"]), {}, True),  # an int is a float
    (plain, (1.5, ["a"]), {"unknown": "b"}, True),
    (plain, (1.5, ["a"], 3), {}, False),
    (plain, (1.5, [3]), {}, False),
    (plain, ("a", ["a"]), {}, False),
    (repeated, (None, 3), {}, True),
    (repeated, ([torch.zeros(3).long()], 3), {}, True),
    (repeated, ([torch.zeros(2).long()], 3), {}, False),
    (repeated, ([torch.zeros(3)], 3), {}, False),
]


@pytest.mark.parametrize("case", range(len(CALLS)))
def test_calls_are_refused_as_by_jaxtyping(case):
    function, arguments, options, accepted = CALLS[case]
    for checked in both(function):
        if accepted:
            checked(*arguments, **options)
        else:
            with pytest.raises(jaxtyping.TypeCheckError):
                checked(*arguments, **options)


def test_sizes_are_forgotten_after_each_call():
    checked = both(sums)[1]
    for size in (2, 3):
        with pytest.raises(ValueError, match="stopped"):
            checked(Stops(torch.zeros(size, 3)), VECTOR)
        assert checked(torch.zeros(size, 3), VECTOR).shape == (size,)


class Stops(torch.nn.Parameter):
    """A matrix that cannot be summed."""

    def sum(self, *_):
        raise ValueError("stopped")


@dataclass
class Pair:
    """Two numbers."""

    one: int
    rows: Bool[Tensor, "B 2"]


def test_data_classes_are_checked_too():
    checked = typechecker.jaxtyped(Pair, typechecker=typechecker.check)
    assert checked(1, torch.ones(3, 2).bool()).one == 1
    for wrong in (("1", torch.ones(3, 2).bool()), (1, torch.ones(3, 3).bool())):
        with pytest.raises(jaxtyping.TypeCheckError):
            checked(*wrong)


def test_a_checked_function_looks_as_before():
    for function in (sums, plain):
        checked = both(function)[1]
        assert checked.__wrapped__ is function
        assert checked.__annotations__ == function.__annotations__
        assert inspect.signature(checked) == inspect.signature(function)
    assert both(outcomes)[1] is outcomes  # without types there is nothing to check


def test_the_library_is_checked():
    """By this very checker: a wrong shape, a wrong type, a data class with a list."""
    process = partita.make_schedule("linear")
    assert process.alpha(torch.zeros(2)).shape == (2,)
    for wrong in (
        lambda: partita.make_schedule(3),
        lambda: process.alpha("now"),
        lambda: Prompt([[1, 2]], torch.ones(1, 2).bool()),
        lambda: uniform_grid("many"),
        lambda: partita.nelbo(3, torch.zeros(2, 2)),
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()
