"""The n-gram baseline against the formulas written out slowly, and against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from partita.errors import InputError
from partita.evaluation.cloze import Blank
from partita.studies import ngram
from partita.studies.ngram import FALLBACK, NGram
from partita.studies.ngram_blanks import both_sides, fillings, left_answers
from tests.laws.tables import VOCAB, all_sequences, assert_law


def text(count=400, size=VOCAB, seed=0):
    """Tokens that depend on the two before them."""
    draw = np.random.default_rng(seed)
    table = draw.dirichlet(np.full(size, 0.5), (size, size))
    tokens = [0, 1]
    while len(tokens) < count:
        tokens.append(int(draw.choice(size, p=table[tokens[-2], tokens[-1]])))
    return np.array(tokens)


class Slow:
    """Interpolated modified Kneser-Ney by dictionaries, as the paper writes it."""

    def __init__(self, tokens, size, order):
        stream = ["start", *map(int, tokens)]
        self.size, self.counts, self.discounts = size, {}, {}
        for k in range(1, order + 1):
            grams = [tuple(stream[i : i + k]) for i in range(len(stream) - k + 1)]
            if k == order:
                counts = Counter(grams[1:])
            else:
                longer = {tuple(stream[i : i + k + 1]) for i in range(len(stream) - k)}
                counts = Counter(gram[1:] for gram in longer)
            self.counts[k] = defaultdict(dict)
            for gram, count in counts.items():
                self.counts[k][gram[:-1]][gram[-1]] = count
            n = Counter(counts.values())
            self.discounts[k] = dict(zip((1, 2, 3), FALLBACK, strict=True))
            if all(n[i] for i in (1, 2, 3, 4)):
                y = n[1] / (n[1] + 2 * n[2])
                found = {i: i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)}
                if all(0 < found[i] <= i for i in found):
                    self.discounts[k] = found

    def prob(self, token, history):
        k = len(history) + 1
        lower = self.prob(token, history[1:]) if history else 1 / self.size
        seen = self.counts[k].get(tuple(history))
        if not seen:
            return lower
        discount = self.discounts[k]
        total = sum(seen.values())
        own = max(seen[token] - discount[min(seen[token], 3)], 0) if token in seen else 0
        left_over = sum(discount[min(count, 3)] for count in seen.values())
        return (own + left_over * lower) / total


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize(("size", "count"), [(3, 400), (9, 2000), (40, 30)])
def test_probabilities_are_those_of_the_formulas(order, size, count):
    tokens = text(count, size)
    model, slow = NGram.train(tokens, size + 1, order), Slow(tokens, size + 1, order)
    other = [*text(60, size, seed=1).tolist(), size]  # an id that the text does not have
    logs = model.log_probs(np.array([other, other[::-1]]))
    for row, found in zip((other, other[::-1]), logs, strict=True):
        expected = [
            math.log(slow.prob(token, row[max(0, place - order + 1) : place]))
            for place, token in enumerate(row)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_large_texts_have_discounts_of_their_own_and_small_ones_have_not():
    large = NGram.train(text(20000, 12), 12, 3)
    assert any(tuple(level.discounts[1:]) != FALLBACK for level in large.levels)
    small = NGram.train(text(20), 3, 3)
    assert all(tuple(level.discounts[1:]) == FALLBACK for level in small.levels)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_every_distribution_sums_to_one(order):
    model = NGram.train(text(), VOCAB + 1, order)
    for length in range(order + 1):
        histories = np.array(list(itertools.product(range(VOCAB + 1), repeat=length)), dtype=int)
        probs = model.following(histories)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
        assert (probs > 0).all()
        for history, row in zip(histories, probs, strict=True):
            ends = np.array([[*history, token] for token in range(VOCAB + 1)])
            np.testing.assert_allclose(np.exp(model.log_probs(ends)[:, -1]), row, rtol=1e-12)
    sequences = np.array(list(itertools.product(range(VOCAB + 1), repeat=4)))
    assert np.exp(model.log_probs(sequences).sum(1)).sum() == pytest.approx(1, rel=1e-12)


def test_a_long_text_is_scored_in_parts(monkeypatch):
    tokens = text(300)
    model, other = NGram.train(tokens, VOCAB, 4), text(100, seed=2)
    whole = -float(model.log_probs(other[None]).sum())
    assert model.stream_nats(other) == pytest.approx(whole, rel=1e-12)
    monkeypatch.setattr(ngram, "SEARCHED", 7)
    assert model.stream_nats(other) == pytest.approx(whole, rel=1e-12)
    again = NGram.train(tokens, VOCAB, 4).levels[-1]
    np.testing.assert_array_equal(again.keys, model.levels[-1].keys)
    np.testing.assert_array_equal(again.counts, model.levels[-1].counts)


def test_samples_follow_the_law():
    model = NGram.train(text(), VOCAB, 3)
    law = torch.from_numpy(np.exp(model.log_probs(all_sequences(3).numpy()).sum(1)))
    samples = model.sample(4000, 3, seed=1)
    assert_law(samples, law)
    parts = [model.sample(2, 3, seed=1, first=first) for first in (0, 2)]
    assert torch.equal(torch.cat(parts), samples[:4])


# Blanks ------------------------------------------------------------------------------------------


def posterior(model, blank):
    """log p(blank | both sides) of all fillings, by whole sequences."""
    options = np.array(list(itertools.product(range(VOCAB), repeat=blank.size)))
    rows = np.array([[*blank.ids[: blank.start], *o, *blank.ids[blank.stop :]] for o in options])
    joint = model.log_probs(rows).sum(1)
    return options, joint - np.log(np.exp(joint - joint.max()).sum()) - joint.max()


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize(("start", "stop"), [(4, 5), (0, 1), (8, 9), (3, 6)])
def test_fillings_are_exact_where_all_are_tried(order, start, stop):
    model = NGram.train(text(), VOCAB, order)
    blank = Blank(text(9, seed=3).tolist(), start, stop)
    options, expected = posterior(model, blank)
    found = fillings(model, blank, beam=100)
    assert len(found.tokens) == len(options)
    place = {tuple(row): log for row, log in zip(options.tolist(), expected, strict=True)}
    for row, log in zip(found.tokens.tolist(), found.log_posterior(), strict=True):
        assert log == pytest.approx(place[tuple(row)], abs=1e-9)
    assert (np.diff(found.scores) <= 0).all()


def test_answers_from_the_left_and_from_both_sides():
    model = NGram.train(text(), VOCAB, 3)
    row = text(40, seed=4).tolist()
    blanks = [Blank(row, place, place + 1 + place % 2) for place in range(0, 38, 3)]
    done = []
    left = left_answers(model, blanks, done.append)
    assert sum(done) == len(blanks)
    for blank, nats, right in zip(blanks, left.nats[0], left.right, strict=True):
        logs = model.log_probs(np.array([row[: blank.stop]]))[0]
        assert float(nats) == pytest.approx(-logs[blank.start :].sum())
        filled = row[: blank.start]
        for _ in range(blank.size):
            filled.append(int(model.following(np.array([filled], dtype=int))[0].argmax()))
        assert bool(right) == (filled == row[: blank.stop])
    found = both_sides(model, blanks, beam=9)
    bits = []
    best = []
    for blank in blanks:
        options, logs = posterior(model, blank)
        best.append(options[logs.argmax()].tolist() == blank.answer)
        if blank.size == 1:
            bits.append(-logs[blank.answer[0]] / math.log(2))
    assert found["accuracy"] == pytest.approx(sum(best) / len(best))
    assert found["one_token"]["count"] == len(bits)
    assert found["one_token"]["bits_per_answer"] == pytest.approx(sum(bits) / len(bits))


def test_texts_that_cannot_be_counted():
    with pytest.raises(InputError, match="has 3 tokens, too few for grams of 3"):
        NGram.train(np.array([0, 1, 2]), 3, 3)
    with pytest.raises(InputError, match="ids must lie in 0"):
        NGram.train(np.array([0, 1, 3]), 3, 1)
    with pytest.raises(InputError, match="order: must be at least 1"):
        NGram.train(text(), 3, 0)
