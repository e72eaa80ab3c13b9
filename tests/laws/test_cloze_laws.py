"""Bits of a blank with its context in view: bounds against exact numbers, by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from partita.contracts.batch import Batch
from partita.evaluation import cloze
from partita.evaluation.cloze import Blank, Mean, answered
from partita.methods import AR, MDLM
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from tests.laws import tables

LENGTH = 3
FAMILY = {"mdlm": tables.table_mdlm, "pgm": tables.table_pgm}


def asked(start, stop, length=LENGTH):
    return [Blank(row, start, stop) for row in tables.all_sequences(length).tolist()]


def orders(method, blank):
    """The probability of the answer in each order, all predictions asked for one by one."""
    tokens = torch.tensor([blank.ids])
    for order in itertools.permutations(range(blank.start, blank.stop)):
        revealed = torch.ones_like(tokens, dtype=torch.bool)
        revealed[0, blank.start : blank.stop] = False
        product = 1.0
        for place in order:
            where = torch.tensor([0]), torch.tensor([place])
            log_probs = method.predict(tokens, revealed, *where)
            product *= float(log_probs[0, blank.ids[place]].detach().exp())
            revealed[0, place] = True
        yield product


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(("start", "stop"), [(1, 2), (0, 2), (1, 3), (0, 3)])
def test_enumerated_bits_are_the_mean_over_orders_and_above_the_likelihood(name, start, stop):
    method, blanks = FAMILY[name](tables.random_logits(LENGTH)), asked(start, stop)
    nats = answered(method, blanks, fill=False).nats
    assert float(nats.std(0).abs().max()) < 1e-12  # nothing is drawn
    for blank, bound in zip(blanks, nats[0].tolist(), strict=True):
        products = list(orders(method, blank))
        likelihood = sum(products) / len(products)
        mean = sum(-math.log(product) for product in products) / len(products)
        assert bound == pytest.approx(mean, abs=1e-5)
        assert bound >= -math.log(likelihood) - 1e-6
        if blank.size == 1:
            assert bound == pytest.approx(-math.log(likelihood), abs=1e-6)


@pytest.mark.parametrize("name", FAMILY)
def test_the_bound_of_conditionals_of_one_law_is_its_likelihood(name):
    law = tables.data_law(LENGTH)
    method, blanks = FAMILY[name](tables.bayes_logits(LENGTH, law)), asked(1, 3)
    context = law.reshape(3, 9).sum(1).repeat_interleave(9)
    nats = answered(method, blanks, fill=False).nats[0]
    torch.testing.assert_close(nats, -(law / context).log(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_drawn_bits_agree_with_enumerated_ones(name, monkeypatch):
    method, blanks = FAMILY[name](tables.random_logits(LENGTH)), asked(0, 3)
    exact = answered(method, blanks, fill=False).nats[0].mean()
    monkeypatch.setattr(cloze, "ENUMERATED", 0)
    mean = Mean.of(answered(method, blanks, fill=False, replicates=200).nats)
    assert 0 < mean.draws_error < 0.1
    assert abs(mean.value - float(exact)) < 4 * mean.draws_error


def test_a_model_that_is_told_the_time_has_its_own_bound():
    """Without drift the time does not matter, and the bound is the one that is enumerated."""
    logits, blanks = tables.random_logits(LENGTH), asked(0, 2)
    exact = answered(tables.table_mdlm(logits), blanks, fill=False).nats[0].mean()
    timed = tables.table_md4(logits, drift=0.0)
    mean = Mean.of(answered(timed, blanks, fill=False, replicates=150).nats)
    assert abs(mean.value - float(exact)) < 4 * mean.draws_error
    drifting = tables.table_md4(logits)
    again = Mean.of(answered(drifting, blanks, fill=False, replicates=150).nats)
    assert abs(again.value - float(exact)) > 4 * again.draws_error


@pytest.mark.parametrize("name", FAMILY)
def test_the_surest_token_comes_first(name):
    method = FAMILY[name](tables.random_logits(LENGTH))
    blanks = asked(1, 3)
    right = answered(method, blanks).right.reshape(3, 9)
    assert right.sum(1).tolist() == [1, 1, 1]  # of nine endings one is what the model fills in
    for first in range(3):
        revealed = torch.tensor([[True, False, False]])
        tokens = torch.tensor([[first, 0, 0]])
        for _ in range(2):
            places = (~revealed[0]).nonzero()[:, 0]
            log_probs = method.predict(tokens, revealed, torch.zeros_like(places), places)
            surest = int(log_probs.amax(-1).argmax())
            tokens[0, places[surest]] = log_probs[surest].argmax()
            revealed[0, places[surest]] = True
        assert bool(right[first, int(tokens[0, 1] * 3 + tokens[0, 2])])


# Networks ----------------------------------------------------------------------------------------


def config(length=12, vocab_size=7):
    return TransformerConfig(vocab_size=vocab_size, length=length, width=16, depth=2, heads=2)


def networks():
    torch.manual_seed(0)
    methods = AR(CausalTransformer(config())), MDLM(Transformer(config()))
    for method in methods:
        for parameter in method.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return methods


def mixed_blanks():
    generator = torch.Generator().manual_seed(3)
    lengths = [12, 9, 12, 9, 12, 5, 12, 12]
    rows = [torch.randint(6, (length,), generator=generator).tolist() for length in lengths]
    spans = [(3, 9), (0, 4), (2, 4), (1, 6), (5, 12), (2, 3), (4, 8), (0, 5)]
    return [Blank(row, *span) for row, span in zip(rows, spans, strict=True)]


def test_autoregressive_bits_are_exact_and_do_not_see_the_right_side():
    method, _ = networks()
    blanks = mixed_blanks()
    found = answered(method, blanks)
    assert found.nats.shape == (1, len(blanks))
    for blank, nats, right in zip(blanks, found.nats[0], found.right, strict=True):
        tokens = torch.tensor([blank.ids[: blank.stop]])
        per_token = method.loss(Batch.of(tokens)).per_token[0].detach().double()
        assert float(nats) == pytest.approx(float(per_token[blank.start :].sum()), abs=1e-4)
        filled = blank.ids[: blank.start]
        caches = method.new_caches(1)
        read = torch.tensor([[method.start_id, *filled]])
        for _ in range(blank.size):
            filled.append(int(method.following(read, caches).argmax()))
            read = torch.tensor([filled[-1:]])
        assert bool(right) == (filled == blank.ids[: blank.stop])


def test_right_answers_of_an_autoregressive_model():
    method, _ = networks()
    blanks = []
    for blank in mixed_blanks():  # answers that are the model's own
        ids = blank.ids[: blank.start]
        for _ in range(blank.size):
            read = torch.tensor([[method.start_id, *ids]])
            ids.append(int(method.following(read, method.new_caches(1)).argmax()))
        blanks.append(Blank(ids + blank.ids[blank.stop :], blank.start, blank.stop))
    assert answered(method, blanks).right.all()


@pytest.mark.parametrize("which", [0, 1])
def test_results_do_not_depend_on_the_batch(which):
    method, blanks = networks()[which], mixed_blanks()
    counts = []
    found = [
        answered(method, blanks, batch_size=size, seed=5, progress=counts.append)
        for size in (1, 3, 32)
    ]
    assert sum(counts) == 3 * 2 * len(blanks)
    for other in found[1:]:
        assert torch.equal(found[0].right, other.right)
        torch.testing.assert_close(found[0].nats, other.nats, atol=1e-4, rtol=1e-5)
    if which:
        another = answered(method, blanks, seed=6).nats
        assert not torch.allclose(found[0].nats, another, atol=1e-3)
