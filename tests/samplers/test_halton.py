"""Halton's order, from the definition: digits behind the point, in reverse."""

from __future__ import annotations

from fractions import Fraction

import pytest

from partita.samplers.halton import halton_order

GRIDS = [(1, 1), (1, 5), (4, 1), (4, 4), (3, 5), (6, 7), (46, 24)]


def mirrored(number, base):
    """0.d1 d2 ... of a number ... d2 d1."""
    share, unit = Fraction(0), Fraction(1)
    while number:
        unit /= base
        share += number % base * unit
        number //= base
    return share


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_cells_are_in_the_order_of_their_first_points(rows, columns):
    """The last two grids have cells that are not visited by the first four points per cell."""
    order, number = {}, 0
    while len(order) < rows * columns:
        number += 1
        cell = int(mirrored(number, 2) * rows) * columns + int(mirrored(number, 3) * columns)
        order.setdefault(cell)
    assert halton_order(rows, columns).tolist() == list(order)
    assert (number >= 4 * rows * columns) == ((rows, columns) in GRIDS[-2:])
