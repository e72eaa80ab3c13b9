"""Halton's order, from the definition: digits behind the point, in reverse."""

from __future__ import annotations

from fractions import Fraction

import pytest

from partita.samplers.halton import halton_order


def mirrored(number, base):
    """0.d1 d2 ... of a number ... d2 d1."""
    share, unit = Fraction(0), Fraction(1)
    while number:
        unit /= base
        share += number % base * unit
        number //= base
    return share


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (4, 1), (4, 4), (3, 5), (6, 7)])
def test_cells_are_in_the_order_of_their_first_points(rows, columns):
    """Of 6 x 7 cells one is not visited before point 4 x 42."""
    order, number = [], 0
    while len(order) < rows * columns:
        number += 1
        cell = int(mirrored(number, 2) * rows) * columns + int(mirrored(number, 3) * columns)
        if cell not in order:
            order.append(cell)
    assert halton_order(rows, columns).tolist() == order
    assert (rows, columns) != (6, 7) or number >= 4 * 42
