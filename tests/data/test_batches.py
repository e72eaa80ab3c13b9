"""The order of data: every row once in an epoch, the same for one process and for many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita.contracts.layouts import DENSE
from partita.data.ahead import Ahead
from partita.data.batches import InMemory, Order, Packed, Padded
from partita.data.shards import Shards, ShardWriter, TokenSource
from partita.errors import InputError
from partita.randomness import permuted


def permutation(size, seed=0, epoch=0):
    return permuted(torch.arange(size), size, seed, torch.full((size,), epoch)).tolist()


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_an_epoch_is_a_permutation(size, seed, epoch):
    assert sorted(permutation(size, seed, epoch)) == list(range(size))


def test_permutations_differ_between_epochs_and_seeds_and_are_addressed():
    assert permutation(100) != permutation(100, epoch=1)
    assert permutation(100) != permutation(100, seed=1)
    whole = permutation(1000, epoch=3)
    picked = torch.tensor([7, 999, 0])
    assert permuted(picked, 1000, 0, torch.full((3,), 3)).tolist() == [whole[i] for i in picked]


def test_all_permutations_of_four_are_equally_likely():
    """24 orders over 4,800 epochs: chi-square at level 1e-3."""
    index = torch.arange(4).repeat(4800)
    epochs = torch.arange(4800).repeat_interleave(4)
    orders = permuted(index, 4, 5, epochs).reshape(-1, 4)
    _, counts = torch.unique(orders, dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_packed_rows_visit_every_token_evenly(batch_size):
    order = Order(Packed(InMemory(torch.arange(60)), 5), batch_size, seed=1)
    seen = torch.zeros(60, dtype=torch.int64)
    rows = 0
    step = 0
    while rows < 3 * 12:  # three epochs
        tokens = order.batch(step).tokens[: 3 * 12 - rows]
        rows, step = rows + len(tokens), step + 1
        seen += torch.bincount(tokens.flatten(), minlength=60)
    assert seen.tolist() == [3] * 60
    assert order.epoch(12) == batch_size


def test_packed_rows_are_pieces_of_the_ring_cut_anew_in_each_epoch():
    order = Order(Packed(InMemory(torch.arange(50)), 7), 7, seed=0)
    starts = set()
    for epoch in range(200):
        batch = order.batch(epoch)
        assert torch.equal(batch.tokens, (batch.tokens[:, :1] + torch.arange(7)) % 50)
        assert batch.tokens[:, 0].tolist() == batch.starts
        starts |= set(batch.starts)
    assert starts == set(range(50))


def test_parts_of_a_batch_are_the_batch():
    order = Order(Packed(InMemory(torch.arange(100)), 5), 8, seed=2)
    whole = order.batch(9)
    halves = [order.batch(9, part) for part in (slice(0, 4), slice(4, 8))]
    assert torch.equal(whole.tokens, torch.cat([half.tokens for half in halves]))
    assert torch.equal(whole.rows, torch.cat([half.rows for half in halves]))
    assert {half.count for half in halves} == {whole.count} == {40}
    assert {half.size for half in halves} == {8}
    parts = whole.split(3)
    assert [len(part.rows) for part in parts] == [3, 3, 2]
    assert torch.equal(whole.tokens, torch.cat([part.tokens for part in parts]))
    assert [start for part in parts for start in part.starts] == whole.starts


@pytest.fixture
def documents(tmp_path):
    """Documents of 3, 12, 1, 5 and 7 tokens; token 10 d + i is number i of document d."""
    with ShardWriter(tmp_path / "shards", 256, {}, shard=10) as writer:
        for document, size in enumerate((3, 12, 1, 5, 7)):
            writer.write(list(range(20 * document, 20 * document + size)))
            writer.end_document()
    return Shards.open(tmp_path / "shards")


def test_padded_rows_hold_one_document_each(documents):
    rows = Padded(documents, 5)
    assert len(rows) == 1 + 3 + 1 + 1 + 2
    order = Order(rows, len(rows), seed=0)
    batch = order.batch(0)
    real = [row[keep].tolist() for row, keep in zip(batch.tokens, batch.is_token, strict=True)]
    expected = [[0, 1, 2], [20, 21, 22, 23, 24], [25, 26, 27, 28, 29], [30, 31], [40]]
    expected += [[60, 61, 62, 63, 64], [80, 81, 82, 83, 84], [85, 86]]
    assert sorted(real) == expected
    assert batch.count == 28
    for keep, ends in zip(batch.is_token, batch.ends, strict=True):
        assert ends.nonzero().flatten().tolist() == [int(keep.sum()) - 1]


def rows_of(rows):
    """Every row of an epoch, without its padding."""
    batch = Order(rows, len(rows), seed=0).first(len(rows))
    found = zip(batch.tokens, batch.is_token, strict=True)
    return batch, [row[keep].tolist() for row, keep in found]


def test_documents_longer_than_a_row_are_left_out(documents):
    """Those of just its length are not."""
    _, found = rows_of(Padded(documents, 5, skip=True))
    assert found == [[0, 1, 2], [40], [60, 61, 62, 63, 64]]
    _, found = rows_of(Padded(documents, 4, skip=True))
    assert found == [[0, 1, 2], [40]]
    assert len(Padded(documents, 12, skip=True)) == 5
    assert len(Padded(InMemory(torch.arange(5)), 4, skip=True)) == 0


def test_separators_are_left_out(documents):
    """A row that ends in the middle of a document and one that ends with it are alike."""
    batch, found = rows_of(Padded(documents, 5, separator=1))
    expected = [[0, 1], [20, 21, 22, 23, 24], [25, 26, 27, 28, 29], [30]]
    assert found == [*expected, [60, 61, 62, 63], [80, 81, 82, 83, 84], [85]]
    assert batch.ends is None


def test_the_order_of_a_seed_stays_what_it_is():
    order = Order(Packed(InMemory(torch.arange(23)), 4), 5, seed=11)
    assert order.batch(0).starts == [21, 13, 6, 2, 17]
    assert order.batch(1).starts == [21, 2, 6, 10, 14]
    assert order.batch(1000).starts == [4, 16, 12, 0, 8]


def test_document_ends_of_packed_rows(documents):
    """A row knows where its documents end, also across the end of the text."""
    order = Order(Packed(documents, 6, document_attention=True), 4, seed=0)
    last = {2, 31, 40, 64, 86}
    for step in range(30):
        batch = order.batch(step)
        for row, ends in zip(batch.tokens.tolist(), batch.ends.tolist(), strict=True):
            assert [token in last for token in row] == ends
    assert Order(Packed(documents, 6), 4, seed=0).batch(0).layout() is DENSE


def test_validation_rows_do_not_move(documents):
    order = Order(Packed(documents, 4), 3, seed=9)
    assert torch.equal(order.first(5).tokens, order.first(5).tokens)
    assert torch.equal(order.first(6, slice(2, 4)).tokens, order.first(6).tokens[2:4])


def test_what_cannot_be_rows_is_refused(documents):
    with pytest.raises(InputError, match="28 tokens do not fill one row of 29"):
        Packed(documents, 29)
    with pytest.raises(InputError, match="document_attention"):
        Padded(documents, 5, document_attention=False)
    assert np.array_equal(documents.ends, [3, 15, 16, 21, 28])


def test_batches_read_ahead_are_those_of_the_order():
    order = Order(Packed(InMemory(torch.arange(100)), 5), 4, seed=3)
    part = slice(1, 3)
    with Ahead(order, part, torch.device("cpu")) as ahead:
        for step in (0, 1, 2, 7, 8, 3):  # also where another step was expected
            found, plain = ahead.batch(step), order.batch(step, part)
            assert torch.equal(found.tokens, plain.tokens)
            assert torch.equal(found.rows, plain.rows)
            assert (found.starts, found.count, found.size) == (plain.starts, plain.count, 4)


def test_what_cannot_be_read_ahead_is_said_when_it_is_wanted():
    class Short(TokenSource):
        """A source whose second batch cannot be read."""

        ends = np.array([20])

        def __len__(self):
            return 20

        def read(self, start, stop):
            if self.reads > 4:
                raise OSError("the disk is gone")
            self.reads += 1
            return torch.arange(start, stop)

        reads = 0

    order = Order(Packed(Short(), 5), 4, seed=0)
    with Ahead(order, slice(None), torch.device("cpu")) as ahead:
        ahead.batch(0)
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.batch(1)
