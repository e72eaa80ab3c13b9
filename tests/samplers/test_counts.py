"""How many positions each step reveals: all of them together, and something at every step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import InputError
from partita.samplers.counts import HIDDEN_SHARE, even_counts, reveal_counts

quickly = settings(max_examples=150, derandomize=True, deadline=None, database=None)
HIDDEN = st.lists(st.integers(0, 70), min_size=1, max_size=4)
STEPS = st.integers(1, 40)


@given(hidden=HIDDEN, steps=STEPS, rule=st.sampled_from(list(HIDDEN_SHARE)))
@quickly
def test_every_position_is_revealed_once_and_no_step_is_idle(hidden, steps, rule):
    counts = reveal_counts(torch.tensor(hidden), steps, rule)
    assert counts.shape == (len(hidden), steps)
    assert counts.dtype == torch.int64
    assert counts.sum(-1).tolist() == hidden
    for row, many in zip(counts.tolist(), hidden, strict=True):
        if many >= steps:
            assert min(row) >= 1
        else:
            assert sorted(row, reverse=True) == [1] * many + [0] * (steps - many)


@given(hidden=HIDDEN, steps=STEPS)
@quickly
def test_even_counts_differ_by_one_at_most_and_fall(hidden, steps):
    for row, many in zip(even_counts(torch.tensor(hidden), steps).tolist(), hidden, strict=True):
        assert sum(row) == many
        assert row == sorted(row, reverse=True)
        assert row[0] - row[-1] in (0, 1)


@given(hidden=HIDDEN, steps=STEPS, rule=st.sampled_from(list(HIDDEN_SHARE)))
@quickly
def test_a_row_does_not_depend_on_its_batch(hidden, steps, rule):
    together = reveal_counts(torch.tensor(hidden), steps, rule)
    alone = [reveal_counts(torch.tensor([many]), steps, rule) for many in hidden]
    assert torch.equal(together, torch.cat(alone))


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=12), rows=st.integers(1, 3))
@quickly
def test_listed_counts_are_taken_as_they_are(counts, rows):
    hidden = torch.full((rows,), sum(counts))
    assert reveal_counts(hidden, len(counts), counts).tolist() == [counts] * rows
    with pytest.raises(InputError, match="counts: sum to"):
        reveal_counts(hidden + 1, len(counts), counts)
    with pytest.raises(InputError, match="counts: has"):
        reveal_counts(hidden, len(counts) + 1, counts)


@pytest.mark.parametrize(
    ("rule", "half"),
    [
        ("cosine", 0.5**0.5),
        ("arccos", 2 / 3),
        ("square", 3 / 4),
        ("cubic", 7 / 8),
        ("root", 1 - 0.5**0.5),
        ("linear", 1 / 2),
    ],
)
def test_what_is_hidden_after_half_of_the_steps(rule, half):
    points = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    expected = torch.tensor([1.0, half, 0.0], dtype=torch.float64)
    torch.testing.assert_close(HIDDEN_SHARE[rule](points), expected)
    assert int(reveal_counts(torch.tensor([1000]), 10, rule)[0, :5].sum()) == 1000 - int(
        1000 * half
    )
