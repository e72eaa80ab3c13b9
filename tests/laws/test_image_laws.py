"""Halton order and guidance follow their enumerated laws, and guidance composes as documented."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from partita.categorical import Decoding, weights
from partita.contracts.batch import Batch
from partita.errors import InputError
from partita.methods import AR, MDLM, PGM, MaskGIT
from partita.methods.contracts import Denoiser
from partita.networks import Transformer, TransformerConfig, TransformerOptions
from partita.networks.base import Network
from partita.randomness import Noise
from partita.samplers import Prompt, guided, sample
from partita.samplers.counts import reveal_counts
from partita.samplers.guidance import RAMPS
from partita.samplers.halton import halton_order, halton_ranks
from partita.schedules import make_schedule, sampling_grid
from tests.laws.tables import (
    MASK,
    VOCAB,
    TableConfig,
    TablePartitionNetwork,
    all_sequences,
    all_states,
    assert_law,
    chain_law,
    random_logits,
    state_index,
    table_mdlm,
)
from tests.support.sampler_laws import law_of_groups, uniform_mixture

SAMPLES, CLASSES, LABEL = 30_000, 2, 1


# Halton order ------------------------------------------------------------------------------------


def radical_inverse(index, base):
    """The digits of a number, mirrored at the point."""
    value, part = 0.0, 1.0
    while index:
        part /= base
        value += part * (index % base)
        index //= base
    return value


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (5, 1), (3, 5), (7, 4), (9, 24)])
def test_the_order_is_that_of_first_visits(rows, columns):
    """The definition, by hand, in floating point with room for its rounding."""
    order, seen, index = halton_order(rows, columns).tolist(), [], 1
    while len(seen) < rows * columns:
        row = int(radical_inverse(index, 2) * rows + 1e-9)
        cell = row * columns + int(radical_inverse(index, 3) * columns + 1e-9)
        seen += [] if cell in seen else [cell]
        index += 1
    assert order == seen


def test_a_roll_begins_with_the_end_of_the_order():
    order = halton_order(3, 4)
    ranks = halton_ranks(3, 4, torch.tensor([0, 5]))
    assert torch.equal(ranks[0].argsort(), order)
    assert torch.equal(ranks[1].argsort(), order.roll(5))


def groups_of(order, counts):
    positions = iter(order)
    return [[next(positions) for _ in range(count)] for count in counts]


@pytest.mark.parametrize(("columns", "steps"), [(2, 2), (2, 3), (None, 2)])
def test_halton_follows_the_law_of_its_order(columns, steps):
    model = table_mdlm(random_logits(4))
    order = halton_order(4 // (columns or 1), columns or 1).tolist()
    counts = reveal_counts(torch.tensor([4]), steps, "arccos")[0].tolist()
    law = law_of_groups(model, groups_of(order, counts))
    options = {"steps": steps} if columns is None else {"steps": steps, "columns": columns}
    assert_law(sample(model, SAMPLES, sampler="halton", seed=1, **options), law)


def test_rolled_halton_is_a_mixture_of_its_rolls():
    model, order = table_mdlm(random_logits(3)), halton_order(1, 3).tolist()
    rolled = [order[-k:] + order[:-k] if k else order for k in range(3)]
    law = uniform_mixture(model, rolled, [2, 1])
    options = {"columns": 3, "counts": [2, 1], "steps": 2, "roll": True}
    assert_law(sample(model, SAMPLES, sampler="halton", seed=2, **options), law)


def test_halton_passes_over_what_is_known():
    model = table_mdlm(random_logits(3))
    prompt = Prompt(torch.tensor([[MASK, 1, MASK]]), torch.tensor([[False, True, False]]))
    rest = [cell for cell in halton_order(1, 3).tolist() if cell != 1]
    law = law_of_groups(model, [[cell] for cell in rest], {1: 1})
    options = {"columns": 3, "steps": 2, "prompt": prompt}
    assert_law(sample(model, SAMPLES, sampler="halton", seed=3, **options), law)


def test_the_grid_is_the_network_s():
    """Its columns are the default, and a network without any is one column."""
    sizes = {"length": 6, "width": 8, "depth": 1, "heads": 2}
    model = MaskGIT.build(TransformerOptions(grid=3, **sizes), 5)
    steps = []
    sample(model, sampler="halton", steps=6, callback=lambda s: steps.append(int(s.positions)))
    assert steps == halton_order(2, 3).tolist()
    steps.clear()
    model = MaskGIT.build(TransformerOptions(**sizes), 5)
    sample(model, sampler="halton", steps=6, callback=lambda s: steps.append(int(s.positions)))
    assert steps == halton_order(6, 1).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": 2}, "3 positions are no whole number of rows of 2"),
        ({"columns": 0}, "columns"),
        ({"counts": [1, 1], "steps": 2}, "sum to 2, but .3. positions are hidden"),
        ({"counts": [1, 2], "steps": 3}, "2 numbers for 3 steps"),
        ({"counts": [4, -1], "steps": 2}, "must be a rule or numbers of positions"),
        ({"counts": "triangle"}, "counts"),
    ],
)
def test_what_halton_refuses(options, message):
    with pytest.raises(InputError, match=message):
        sample(table_mdlm(random_logits(3)), 2, sampler="halton", **options)


# MaskGIT's law -----------------------------------------------------------------------------------


def test_maskgit_hides_by_arccos_and_weighs_nothing():
    """P(k of 3 tokens are hidden) is the integral of a binomial law over r."""
    model = MaskGIT.build(TransformerOptions(length=3, width=8, depth=1, heads=2), 5)
    rows = 1 << 14
    drawn = model.corruption.draw(
        torch.ones(rows, 3, dtype=torch.bool), Noise.for_batch(0, rows), 0, rows
    )
    r = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    rate = torch.acos(r) / (torch.pi / 2)
    binomial = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=torch.float64)
    k = torch.arange(4)
    law = (binomial * rate[:, None] ** k * (1 - rate[:, None]) ** (3 - k)).mean(0)
    share = torch.bincount(drawn.masked.sum(1), minlength=4) / rows
    torch.testing.assert_close(share.double(), law, atol=0.01, rtol=0)
    assert torch.equal(drawn.weights, torch.ones_like(drawn.weights))
    assert not model.corruption.bound
    assert model.bound_corruption.bound
    assert not model.timed


def test_pgm_learns_images_by_the_same_law():
    """Every token of both groups counts alike: half of the plain cross-entropy of all."""
    method = PGM(
        TablePartitionNetwork(random_logits(3)), schedule="arccos", corruption="unweighted"
    )
    tokens = all_sequences(3)
    loss = method.loss(Batch.of(tokens), Noise.for_batch(0, len(tokens)))
    assert loss.counted.all()
    torch.testing.assert_close(loss.per_token, loss.cross_entropy / 2)
    torch.testing.assert_close(loss.objective, loss.cross_entropy.mean() / 2)


# Guidance ----------------------------------------------------------------------------------------


class LabelledTable(nn.Module, Network):
    """A table of logits for every label, and one for none."""

    def __init__(self, length):
        super().__init__()
        tables = [random_logits(length, seed) for seed in range(CLASSES + 1)]
        self.table = nn.Parameter(torch.stack(tables))
        self.config = TableConfig(length=length, classes=CLASSES, time=False)

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        none = torch.full((len(tokens),), CLASSES)
        told = none if label is None else label
        rows = queries.rows
        return self.table[told[rows], state_index(tokens)[rows], queries.positions]


class Towards(Denoiser):
    """A guided model as one without labels, for the oracles: the formula, and a fixed label."""

    mask_id, timed, family = MASK, False, "masked"

    def __init__(self, model, weight, ramp="constant", decoding=None):
        self.model, self.weight, self.ramp, self.decoding = model, weight, ramp, decoding
        self.length, self.schedule = model.length, model.schedule

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):  # noqa: ARG002
        logs = []
        for told in (LABEL, CLASSES):
            labels = torch.full((len(tokens),), told)
            logs.append(self.model.predict(tokens, revealed, rows, positions, None, labels))
        known = revealed.sum(-1)[rows].double()
        share = {
            "constant": torch.ones_like(known),
            "linear": known / (self.length - 1),
            "cosine": 0.5 - 0.5 * torch.cos(torch.pi * known / (self.length - 1)),
        }[self.ramp]
        weight = (self.weight * share)[:, None]
        mixed = ((1 + weight) * logs[0] - weight * logs[1]).log_softmax(-1)
        if self.decoding is None:
            return mixed
        kept = weights(mixed, self.decoding)
        return (kept / kept.sum(-1, keepdim=True)).log()


def labelled(length=3):
    return MDLM(LabelledTable(length), mask_id=MASK)


every_ramp = pytest.mark.parametrize("ramp", list(RAMPS))


@every_ramp
def test_every_guided_prediction_is_the_formula(ramp):
    model, states = labelled(), all_states(3)
    rows, positions = (states == MASK).nonzero(as_tuple=True)
    label = torch.full((len(states),), LABEL)
    ours = guided(model, 1.7, ramp).predict(states, states != MASK, rows, positions, None, label)
    oracle = Towards(model, 1.7, ramp).predict(states, states != MASK, rows, positions)
    torch.testing.assert_close(ours, oracle)
    torch.testing.assert_close(ours.exp().sum(-1), torch.ones(len(rows), dtype=torch.float64))


def test_weights_rise_from_nothing_to_all():
    share = torch.linspace(0, 1, 21, dtype=torch.float64)
    for name in RAMPS:
        rising = RAMPS[name](share)
        assert (rising.diff() >= 0).all()
        assert rising[-1] == 1
        assert rising[0] == (1 if name == "constant" else 0)


@every_ramp
@pytest.mark.parametrize("sampler", ["ancestral", "ordered", "halton", "first-hitting"])
def test_guided_samplers_follow_the_enumerated_law(sampler, ramp):
    model = labelled()
    oracle = Towards(model, 1.3, ramp)
    any_order = uniform_mixture(oracle, itertools.permutations(range(3)), [1, 1, 1])
    law, options = {
        "ancestral": (None, {"steps": 2}),
        "ordered": (any_order, {}),
        "first-hitting": (any_order, {}),
        "halton": (law_of_groups(oracle, [[0], [1, 2]]), None),
    }[sampler]
    if sampler == "ancestral":
        law = chain_law(oracle, 3, sampling_grid("uniform", 2), make_schedule("log-linear"))
    if sampler == "halton":
        order = halton_order(1, 3).tolist()
        law = law_of_groups(oracle, groups_of(order, [1, 2]))
        options = {"columns": 3, "steps": 2, "counts": [1, 2]}
    drawn = sample(
        model,
        SAMPLES,
        label=LABEL,
        guidance=1.3,
        guidance_schedule=ramp,
        sampler=sampler,
        seed=5,
        **options,
    )
    assert_law(drawn, law)
    plain = law_of_groups(Towards(model, 0.0), [[0], [1], [2]])
    assert float((law - plain).abs().sum()) > 0.05  # there is something to tell apart


@pytest.mark.parametrize(
    "sampler", ["ancestral", "ordered", "halton", "first-hitting", "confidence", "threshold"]
)
def test_weight_zero_is_no_guidance_token_by_token(sampler):
    model = labelled()
    plain = sample(model, 500, label=LABEL, sampler=sampler, seed=6)
    assert torch.equal(sample(model, 500, label=LABEL, sampler=sampler, seed=6, guidance=0), plain)
    wrapped = sample(guided(model, 0.0), 500, label=LABEL, sampler=sampler, seed=6)
    assert torch.equal(wrapped, plain)
    strong = sample(model, 500, label=LABEL, sampler=sampler, seed=6, guidance=3.0)
    assert not torch.equal(strong, plain)


@pytest.mark.parametrize("decoding", [Decoding(0.6), Decoding(2.5, top_p=0.95), Decoding(top_k=2)])
def test_temperature_and_truncation_come_after_guidance(decoding):
    model = labelled(2)
    law = law_of_groups(Towards(model, 1.3, decoding=decoding), [[0], [1]])
    options = {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}
    drawn = sample(
        model,
        SAMPLES,
        label=LABEL,
        guidance=1.3,
        sampler="ordered",
        order="left-to-right",
        seed=7,
        **options,
    )
    assert_law(drawn, law)


def test_each_row_has_its_own_label():
    model = labelled(2)
    labels = torch.arange(2).repeat_interleave(SAMPLES // 2)
    options = {"sampler": "ordered", "order": "left-to-right", "seed": 8, "guidance": 1.3}
    drawn = sample(model, SAMPLES, label=labels, **options)
    law = law_of_groups(Towards(model, 1.3), [[0], [1]])
    assert_law(drawn[labels == LABEL], law)


def network(kind, **options):
    config = {"vocab_size": 6, "length": 4, "width": 8, "depth": 1, "heads": 2} | options
    return kind(TransformerConfig(**config))


def test_what_guidance_refuses():
    model, unlabelled = labelled(), MDLM(network(Transformer))
    options = TransformerOptions(length=4, width=8, depth=1, heads=2, classes=2)
    for broken, told, message in (
        (model, {"guidance": 2.0}, "label: guidance pulls towards a class label"),
        (unlabelled, {"guidance": 2.0, "label": 1}, "guidance: the model has no class labels"),
        (AR.build(options, 5), {"guidance": 2.0}, "label: guidance pulls towards a class label"),
        (guided(model, 1.0), {"guidance": 2.0, "label": 1}, "is guided already"),
        (model, {"guidance": -1.0, "label": 1}, "guidance"),
        (model, {"guidance": float("nan"), "label": 1}, "guidance"),
        (model, {"guidance_schedule": "linear", "label": 1}, "there is no guidance"),
        (model, {"guidance": 1.0, "guidance_schedule": "up", "label": 1}, "guidance_schedule"),
    ):
        with pytest.raises(InputError, match=message):
            sample(broken, 2, **told)


def test_the_enumeration_is_complete():
    law = law_of_groups(Towards(labelled(), 1.3, "linear"), [[0], [1], [2]])
    assert len(law) == len(all_sequences(3)) == VOCAB**3
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=torch.float64))
