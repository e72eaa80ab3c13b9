"""Packed batches: what they hold, where it came from, and the way back."""

from __future__ import annotations

import doctest

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.contracts import packed
from partita.contracts.layouts import DENSE, PackedLayout
from partita.contracts.packed import NOWHERE, PackedBatch, PackedTokens, indices_of, unsorted

quickly = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def test_the_worked_example():
    found = doctest.testmod(packed)
    assert found.attempted > 10
    assert found.failed == 0


@st.composite
def rectangles(draw):
    """Rows of distinct tokens, which of them there are, and where documents end."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    numbers = st.lists(st.booleans(), min_size=rows * length, max_size=rows * length)
    held, ends = (torch.tensor(draw(numbers)).view(rows, length) for _ in range(2))
    return torch.arange(rows * length).view(rows, length), held, ends


def flat(rows):
    return [token for row in rows for token in row]


def same_lengths(batch, sequences):
    """Offsets are those of the sequences' lengths, and the bound holds."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    assert batch.count == len(sequences)
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens.diff().tolist() == lengths.tolist()
    assert batch.max_seqlen >= max(lengths.tolist())


@quickly
@given(rectangles())
def test_held_tokens_are_packed_row_by_row(case):
    tokens, held, _ = case
    text = PackedTokens.of(tokens, held)
    rows = [row[kept].tolist() for row, kept in zip(tokens, held, strict=True)]
    same_lengths(text, rows)
    assert text.tokens.tolist() == flat(rows)
    assert torch.equal(tokens[text.indices], text.tokens)
    assert torch.equal(text.sequence_ids, text.indices.rows)
    assert text.position_ids.tolist() == [place for row in rows for place in range(len(row))]
    again = PackedTokens.of_texts(text.tokens, text.lengths)
    for name in ("cu_seqlens", "sequence_ids", "position_ids"):
        assert torch.equal(getattr(again, name), getattr(text, name))
    for end in (99, 100):  # what is found once serves every end
        longer, places, ends = text.with_ends(end)
        same_lengths(longer, [[*row, end] for row in rows])
        assert longer.tokens.tolist() == flat([*row, end] for row in rows)
        assert torch.equal(longer.tokens[places], text.tokens)
        assert longer.tokens[ends].tolist() == [end] * len(rows)


@quickly
@given(rectangles())
def test_documents_are_sequences(case):
    tokens, _, ends = case
    for layout in (DENSE, PackedLayout.of_documents(ends)):
        batch = PackedBatch.of_rows(tokens, layout)
        cut = ends if layout is not DENSE else torch.zeros_like(ends)
        before = torch.nn.functional.pad(cut.long().cumsum(1)[:, :-1], (1, 0))
        own = [
            row[part == k] for row, part in zip(tokens, before, strict=True) for k in part.unique()
        ]
        same_lengths(batch, own)
        assert torch.equal(tokens[batch.indices], torch.cat(own))
        assert batch.position_ids.tolist() == [k for part in own for k in range(len(part))]
        assert batch.row_of_sequence().tolist() == [int(p[0]) // tokens.shape[1] for p in own]


@quickly
@given(rectangles(), st.integers(1, 3))
def test_registers_stand_after_each_sequence(case, each):
    """Sorted tokens come back in their order, with registers between them or without."""
    tokens, held, groups = case
    places, rows = indices_of(held, tokens), len(tokens)
    group = 2 * places.rows + groups[places].long()
    batch, order = PackedBatch.sort(places, places.positions, group, 2 * rows, tokens.shape[1])
    given_tokens = tokens[places]
    assert torch.equal(tokens[batch.indices], given_tokens[order])
    assert torch.equal(unsorted(tokens[batch.indices], order), given_tokens)
    own = [given_tokens[group == number].tolist() for number in range(2 * rows)]
    same_lengths(batch, own)
    joint, order = batch.with_registers(each, torch.arange(2 * rows) // 2)
    same_lengths(joint, [part + [-1] * each for part in own])
    values = torch.cat([tokens[batch.indices], torch.full((2 * rows * each,), -1)])
    assert values[order].tolist() == flat(part + [-1] * each for part in own)
    assert torch.equal(joint.indices.rows, joint.sequence_ids // 2)
    assert (joint.position_ids[values[order] < 0] == NOWHERE).all()
    assert torch.equal(unsorted(values[order], order)[: len(given_tokens)], tokens[batch.indices])
