"""Timetables: when each position is revealed, as parts of one order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.execution.timetable import PackedSlots, Timetable

NEVER, KNOWN = -1, -2
quickly = partial(settings, derandomize=True, deadline=None, database=None, max_examples=150)


@dataclass(frozen=True)
class Case:
    """A plan, what was known before it, and how many steps it has."""

    plan: torch.Tensor
    revealed: torch.Tensor
    steps: int

    @property
    def planned(self):
        return (self.plan >= 0) & ~self.revealed

    @property
    def shares(self):
        """One number for each row and step, never 0."""
        rows = torch.arange(len(self.plan))[:, None]
        return 1 / (2.0 + self.plan.clamp(min=0) + 100 * rows).double()

    @property
    def table(self):
        return Timetable.of(self.plan, self.revealed, self.shares, self.steps)


@st.composite
def cases(draw):
    rows, length, steps = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 6))
    chosen = st.integers(KNOWN, steps - 1)
    entries = draw(st.lists(chosen, min_size=rows * length, max_size=rows * length))
    plan = torch.tensor(entries).view(rows, length)
    # What is known already stays as it is, whatever a plan says of it.
    revealed = plan == KNOWN
    return Case(torch.where(revealed, draw(chosen), plan).clamp(min=NEVER), revealed, steps)


def places(table, row, first, end):
    return set(table.order[row, int(first) : int(end)].tolist())


def where(mask):
    return set(mask.nonzero()[:, 0].tolist())


@quickly()
@given(case=cases())
def test_the_order_names_every_position_once(case):
    everywhere = torch.arange(case.plan.shape[1]).expand_as(case.plan)
    assert torch.equal(case.table.order.sort(-1).values, everywhere)


@quickly()
@given(case=cases())
def test_a_step_reads_what_was_revealed_before_and_asks_for_its_own(case):
    table = case.table
    for number, step in enumerate(table.steps):
        for row in range(len(case.plan)):
            begin, end = table.known[number, row], table.known[number + 1, row]
            earlier = case.revealed[row] | (case.planned[row] & (case.plan[row] < step))
            assert places(table, row, 0, begin) == where(earlier)
            now = case.planned[row] & (case.plan[row] == step)
            assert places(table, row, begin, end) == where(now)
            share = case.shares[row][now]
            assert table.shares[number, row] == (share[0] if len(share) else 0)


@quickly()
@given(case=cases())
def test_counts_add_up(case):
    table, planned = case.table, case.planned
    assert torch.equal(table.known[0], case.revealed.sum(-1))
    assert torch.equal(table.known[-1], (case.revealed | planned).sum(-1))
    assert table.read == table.known.sum(1)[:-1].tolist()
    assert table.queried == table.known.sum(1).diff().tolist()
    assert sum(table.queried) == int(planned.sum())


@quickly()
@given(case=cases())
def test_steps_that_reveal_nothing_are_left_out(case):
    table = case.table
    assert table.steps == sorted({*case.plan[case.planned].tolist()})
    assert len(table.known) == len(table.steps) + 1
    assert all(asked > 0 for asked in table.queried)


def test_a_plan_without_steps():
    known = torch.ones(2, 3, dtype=torch.bool)
    table = Timetable.of(torch.full((2, 3), NEVER), known, torch.ones(2, 3).double(), 0)
    assert table.steps == table.read == table.queried == []
    assert table.known.tolist() == [[3, 3]]


@quickly()
@given(case=cases(), more=st.integers(0, 5), data=st.data())
def test_a_part_of_an_order_fills_the_first_slots(case, more, data):
    """Slots that are too many belong to no row, and still name a row and a position."""
    order, (rows, length) = case.table.order, case.plan.shape
    ends = data.draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows))
    begins = [data.draw(st.integers(0, end)) for end in ends]
    first, end = torch.tensor(begins), torch.tensor(ends)
    count = int((end - first).sum())
    slots = PackedSlots.of(order, first, end, count + more)
    held = [(row, int(order[row, k])) for row in range(rows) for k in range(begins[row], ends[row])]
    assert [
        *zip(slots.rows[:count].tolist(), slots.positions[:count].tolist(), strict=True)
    ] == held
    assert slots.real.tolist() == [True] * count + [False] * more
    assert torch.equal(slots.sequence_ids[:count], slots.rows[:count])
    assert slots.sequence_ids[count:].tolist() == [rows] * more
    assert slots.cu_seqlens.diff().tolist() == (end - first).tolist()
    assert bool(((slots.rows >= 0) & (slots.rows < rows)).all())
    assert bool(((slots.positions >= 0) & (slots.positions < length)).all())
