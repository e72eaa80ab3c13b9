"""What a text costs in an order is what the sampler that follows that order gives it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from partita.errors import InputError
from partita.likelihood.enumeration import exact_log_likelihood
from partita.likelihood.orders import order_likelihood
from partita.methods import AR, MDLM, PGM
from partita.networks import (
    CausalTransformer,
    PartitionTransformer,
    Transformer,
    TransformerConfig,
)
from partita.samplers import sample
from tests.laws.tables import (
    MASK,
    LabelledNetwork,
    TableNetwork,
    all_sequences,
    assert_law,
    leaning_pair,
    random_logits,
    table_md4,
    table_mdlm,
    table_pgm,
)
from tests.support.bounds import subset_bound

LENGTH, SAMPLES = 3, 30_000
MODELS = {"mdlm": table_mdlm, "pgm": table_pgm, "md4, told the time": table_md4}
ORDERS = ["left-to-right", (2, 0, 1)]


def nats_of(model, order, length=LENGTH, **options):
    """What every sequence costs, one by one."""
    return torch.tensor(
        [
            length * order_likelihood(model, x[None], order, **options).nats
            for x in all_sequences(length)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_costs_are_those_of_the_sampler(kind, order):
    """They sum to one over all sequences, and the sampler's texts follow them."""
    model = MODELS[kind](random_logits(LENGTH))
    given = order if isinstance(order, str) else list(order)
    law = nats_of(model, given).neg().exp()
    drawn = sample(model, SAMPLES, sampler="ordered", order=given, seed=3)
    assert_law(drawn, law)


@pytest.mark.parametrize("kind", ["mdlm", "pgm"])
def test_the_mean_over_all_orders_is_the_bound(kind):
    model, orders = MODELS[kind](random_logits(LENGTH)), [*itertools.permutations(range(LENGTH))]
    nats = torch.stack([nats_of(model, list(order)) for order in orders])
    masked = table_mdlm(random_logits(LENGTH))
    for number, x in enumerate(all_sequences(LENGTH)):
        assert float(nats[:, number].mean()) == pytest.approx(subset_bound(masked, x), rel=1e-6)
        any_order = nats[:, number].neg().exp().mean().log()
        assert float(any_order) == pytest.approx(exact_log_likelihood(model, x), rel=1e-6)


def test_random_orders_are_an_estimate_of_the_bound():
    """Each sequence has its own, by its number and the seed."""
    model = table_mdlm(random_logits(LENGTH))
    x = torch.tensor([[2, 0, 1]]).expand(4000, -1)
    costs = [order_likelihood(model, x, "random", seed=seed, batch_size=999) for seed in (0, 0, 1)]
    assert costs[0] == costs[1] != costs[2]
    assert costs[0].nats == pytest.approx(subset_bound(model, x[0]) / LENGTH, rel=0.02)


def trained_sizes(kind):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=6, length=8, width=16, depth=2, heads=2)
    networks = {"mdlm": (MDLM, Transformer), "pgm": (PGM, PartitionTransformer)}
    method, network = networks[kind]
    model = method(network(config))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("kind", ["mdlm", "pgm"])
def test_rows_that_end_early_cost_what_they_cost_alone(kind):
    model, seen = trained_sizes(kind), []
    tokens = torch.randint(5, (5, 8), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([8, 3, 8, 0, 5])
    valid = torch.arange(8) < lengths[:, None]
    together = order_likelihood(model, tokens, is_token=valid, batch_size=2, progress=seen.append)
    alone = [
        n * order_likelihood(model, row[None, :n]).nats
        for row, n in zip(tokens, lengths.tolist(), strict=True)
        if n
    ]
    assert together.tokens == 24
    assert together.nats_error == 0
    assert together.nats == pytest.approx(math.fsum(alone) / 24, rel=1e-5)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_orders_make_no_difference_where_logits_depend_on_nothing():
    model = table_mdlm(random_logits(1)[-1:].expand(4**LENGTH, LENGTH, -1).contiguous())
    x = all_sequences(LENGTH)
    exact = sum(subset_bound(model, row) for row in x) / x.numel()
    for order in ("left-to-right", "random", [2, 0, 1]):
        assert order_likelihood(model, x, order).nats == pytest.approx(exact, rel=1e-6)


def test_labels_are_told():
    model = MDLM(LabelledNetwork(*leaning_pair(table)), mask_id=MASK)
    plain = [MDLM(table(seed), mask_id=MASK) for seed in (1, 2)]
    x = all_sequences(LENGTH)
    labels = torch.arange(len(x)) % 2  # label 1 leans towards token 1
    ours = order_likelihood(model, x, label=labels).nats
    assert ours != pytest.approx(order_likelihood(model, x, label=0).nats)
    halves = [order_likelihood(model, x[labels == c], label=c).nats for c in (0, 1)]
    counts = [int((labels == c).sum()) for c in (0, 1)]
    mean = sum(n * c for n, c in zip(halves, counts, strict=True)) / len(x)
    assert ours == pytest.approx(mean, rel=1e-6)
    assert halves[0] == pytest.approx(order_likelihood(plain[1], x[labels == 0]).nats, rel=1e-6)


def test_dropout_is_off_and_comes_back():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=6, length=8, width=16, depth=2, heads=2, dropout=0.5)
    model = MDLM(Transformer(config)).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randint(5, (3, 8))
    assert order_likelihood(model, x) == order_likelihood(model, x)
    assert model.training


def table(seed):
    return TableNetwork(random_logits(LENGTH, seed), with_mask=True)


def test_what_is_refused():
    model, x = table_mdlm(random_logits(LENGTH)), torch.tensor([[2, 0, 1]])
    config = TransformerConfig(vocab_size=4, length=LENGTH, width=8, depth=1, heads=1)
    with pytest.raises(InputError, match="order: AR does not reveal tokens in an order; it is for"):
        order_likelihood(AR(CausalTransformer(config)), x)
    with pytest.raises(InputError, match="order: unknown name 'upwards'; known: left-to-right, r"):
        order_likelihood(model, x, "upwards")
    with pytest.raises(InputError, match="is_token: has padding before tokens; put the tokens"):
        order_likelihood(model, x, is_token=torch.tensor([[False, True, True]]))
    some = torch.tensor([[True] * 3, [False] * 3])  # an empty row costs nothing in any order
    cost = order_likelihood(model, x.expand(2, -1), [2, 0, 1], is_token=some)
    assert cost == order_likelihood(model, x, [2, 0, 1])
