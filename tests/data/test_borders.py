"""Where a border can hide a fault: chunks of files, parts of batches, ends of epochs."""

from __future__ import annotations

import codecs
import re
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.contracts.batch import Batch
from partita.data import documents
from partita.data.batches import InMemory, Order, Packed, Padded
from partita.data.text_files import decoded

quickly = settings(max_examples=40, derandomize=True, deadline=None, database=None)


# Documents ---------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from("ab \n"), max_size=14)


def expected(text, kind):
    """The documents of a text, by what the pages say a document is."""
    if kind == "file":
        return [text] if text else []
    parts = text.split("\n") if kind == "line" else re.split(r"\n{2,}", text)
    return [part.strip("\n") for part in parts if part.strip("\n")]


def split(chunks, kind):
    """The documents of a text that comes in chunks."""
    found, inside = [], ""
    for piece in documents._split(iter(chunks), documents.SEPARATORS[kind]):
        inside += piece.text
        if piece.ends:
            found, inside = [*found, inside], ""
    assert not inside, "a document without an end"
    return found


@pytest.mark.parametrize("kind", list(documents.SEPARATORS))
@pytest.mark.parametrize("piece", [1, 2, 3, 1 << 20])
@given(text=TEXTS)
@quickly
def test_documents_are_the_same_at_every_border_of_two_chunks(kind, piece, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        for border in range(len(text) + 1):
            assert split([text[:border], text[border:]], kind) == expected(text, kind)
        assert split(list(text), kind) == expected(text, kind)


@given(
    text=st.text(st.sampled_from("aé€😀\n\r"), max_size=9),
    marked=st.booleans(),
    size=st.integers(1, 12),
)
@quickly
def test_a_file_is_the_same_text_in_chunks_of_every_size(tmp_path_factory, text, marked, size):
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_bytes((codecs.BOM_UTF8 if marked else b"") + text.encode())
    assert "".join(decoded(path, size)) == text.replace("\r\n", "\n").replace("\r", "\n")


# Batches -----------------------------------------------------------------------------------------


def batch_of(rows, length, others, has):
    """A batch, or the part of one that a process has."""
    size = rows + others
    tokens = torch.arange(rows * length).view(rows, length)
    return Batch(
        tokens,
        tokens % 3 > 0 if "is_token" in has else None,
        tokens % 5 == 0 if "ends" in has else None,
        torch.arange(size - rows, size),
        size,
        size * length,
        [7 * row for row in range(rows)],
        torch.arange(rows) if "label" in has else None,
    )


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 5)),
    has=st.sets(st.sampled_from(["is_token", "ends", "label"])),
    most=st.none() | st.integers(1, 12),
)
@quickly
def test_parts_of_a_batch_are_all_of_it_in_order(sizes, has, most):
    batch = batch_of(*sizes, has)
    parts = batch.split(most)
    each = [len(part.rows) for part in parts]
    whole = len(batch.rows) if most is None else most
    assert all(size == whole for size in each[:-1])
    assert 0 < each[-1] <= whole
    assert [start for part in parts for start in part.starts] == batch.starts
    assert {(part.size, part.count) for part in parts} == {(batch.size, batch.count)}
    for name in ("tokens", "is_token", "ends", "rows", "label"):
        together = [getattr(part, name) for part in parts]
        if getattr(batch, name) is None:
            assert together == [None] * len(parts)
        else:
            assert torch.equal(torch.cat(together), getattr(batch, name))


# Orders ------------------------------------------------------------------------------------------


class Documents(InMemory):
    """Tokens in which each is its own number, as documents of some sizes."""

    def __init__(self, sizes):
        super().__init__(torch.arange(sum(sizes)))
        object.__setattr__(self, "_ends", np.array([*accumulate(sizes)]))

    @property
    def ends(self):
        return self._ends


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=8)
ORDERS = {"length": st.integers(1, 5), "batch_size": st.integers(1, 7), "seed": st.integers(0, 99)}


def epochs(order, count):
    """The rows of some epochs, as (tokens, valid), whatever batches they come in."""
    total = count * len(order.rows)
    parts = [order.batch(step) for step in range(-(-total // order.batch_size))]
    tokens = torch.cat([part.tokens for part in parts])[:total]
    real = [torch.ones_like(p.tokens).bool() if p.is_token is None else p.is_token for p in parts]
    rows = zip(tokens, torch.cat(real)[:total], strict=True)
    seen = [row[valid].tolist() for row, valid in rows]
    each = len(order.rows)
    return [[*chain(*seen[n * each : (n + 1) * each])] for n in range(count)]


@given(sizes=SIZES, **ORDERS)
@quickly
def test_an_epoch_of_padded_rows_has_every_token_once(sizes, length, batch_size, seed):
    order = Order(Padded(Documents(sizes), length), batch_size, seed)
    for seen in epochs(order, 3):
        assert sorted(seen) == list(range(sum(sizes)))


@given(sizes=SIZES, **ORDERS)
@quickly
def test_an_epoch_of_packed_rows_has_no_token_twice(sizes, length, batch_size, seed):
    """All of them, but for those at the end that fill no row."""
    length = min(length, sum(sizes))
    order = Order(Packed(Documents(sizes), length), batch_size, seed)
    for seen in epochs(order, 3):
        assert len(seen) == len(set(seen)) == sum(sizes) // length * length


@given(sizes=SIZES, step=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 7)), **ORDERS)
@quickly
def test_any_step_is_there_at_once_and_in_any_parts(sizes, step, cuts, length, batch_size, seed):
    """So a run goes on at any step, with any number of processes."""
    rows = Padded(Documents(sizes), length)
    whole = Order(rows, batch_size, seed).batch(step)
    borders = sorted({0, batch_size, *(cut for cut in cuts if cut < batch_size)})
    again = Order(Padded(Documents(sizes), length), batch_size, seed)
    parts = [again.batch(step, slice(low, high)) for low, high in pairwise(borders)]
    for name in ("tokens", "is_token", "ends", "rows"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
    assert [start for part in parts for start in part.starts] == whole.starts
    assert {(part.size, part.count) for part in parts} == {(whole.size, whole.count)}
