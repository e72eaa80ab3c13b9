"""Guidance in every family: the formula by hand, one pass for both predictions, enumerated laws.

The laws are those of methods without guidance, over networks and tables that are mixed by hand.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn

from partita.contracts.layouts import Queries
from partita.contracts.packed import PackedTokens
from partita.methods import D3PM, DDPM, MD4, METHODS, SEDD, GenMD4
from partita.methods.ddpm import PREDICTIONS
from partita.networks import TransformerOptions
from partita.networks.unet import UNet
from partita.samplers import guided, sample
from partita.samplers.gaussian import sample_ddpm
from partita.schedules import sampling_grid
from tests.laws import growing, tables
from tests.laws.tables import LEVEL, MASK, VOCAB, LabelledNetwork, MixedNetwork, assert_law
from tests.support.chain_laws import TimedTable, both, naive_law, timed_logits
from tests.support.gaussian_laws import MixedFormula, token_law, two_tokens
from tests.support.genmd4_laws import chain_law
from tests.support.score_laws import CHAINS, Scores, both_graphs, both_samplers, rule_law

LENGTH, CLASSES, LABEL, WEIGHT, SAMPLES = 6, 3, 1, 2.0, 20_000
LABELS, NONE = torch.tensor([0, 2, 1]), torch.full((3,), CLASSES)
TIMES = torch.tensor([1.0, 0.55, 0.2], dtype=torch.float64)
CASES = {name: (name, {}) for name in METHODS} | {
    "d3pm uniform": ("d3pm", {"transition": "uniform"}),
    "flexmdm counts": ("flexmdm", {"gaps": "distribution"}),
}
WEIGHTS = {"constant": lambda share: WEIGHT + 0 * share, "linear": lambda share: WEIGHT * share}
every_case = pytest.mark.parametrize("case", CASES)
both_ramps = pytest.mark.parametrize("ramp", WEIGHTS)


def build(case, length=LENGTH):
    """A method over a network with weights of its own in every layer."""
    name, options = CASES[case]
    options = options | ({"steps": 20} if name in ("d3pm", "ddpm") else {})
    torch.manual_seed(1)
    sizes = TransformerOptions(length=length, width=16, depth=2, heads=2, classes=CLASSES)
    model = METHODS[name].build(sizes, VOCAB, **options)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


# Predictions -------------------------------------------------------------------------------------
# What each family says of three states, by kind, and how much of a linear ramp each answer has.


def masked(model, label):
    hidden = torch.arange(LENGTH) < torch.tensor([[6], [3], [1]])
    tokens = torch.where(hidden, model.mask_id, torch.arange(LENGTH) % VOCAB)
    rows, positions = hidden.nonzero(as_tuple=True)
    time = TIMES if model.timed else None
    answer = model.predict(tokens, ~hidden, rows, positions, time, label)
    return {"law": (answer, ((~hidden).sum(-1) / (LENGTH - 1))[rows])}


def causal(model, label):
    """Two tokens are known: the start token and the first in one reading, the second in another."""
    caches, read = model.new_caches(3), torch.tensor([[VOCAB, 0], [VOCAB, 2], [VOCAB, 2]])
    first = model.following(read, caches, label)
    second = model.following(torch.tensor([[1], [1], [0]]), caches, label)
    share = torch.tensor([1 / (LENGTH - 1), 2 / (LENGTH - 1)]).repeat_interleave(3)
    return {"law": (torch.cat([first, second]), share)}


def chain(model, label):
    tokens = torch.arange(3 * LENGTH).view(3, LENGTH) % model.prior(NONE[None]).shape[-1]
    return {"law": (model.log_mean(tokens, TIMES, label), 1 - TIMES)}


def gaussian(model, label):
    x = torch.randn(3, LENGTH, 16, generator=torch.Generator().manual_seed(0)).double()
    t = torch.tensor([20, 11, 4])
    return {"law": (model.log_probabilities(x, t, label), 1 - t / 20)}


def score(model, label):
    kind = "score" if model.graph.mask_id is None else "score of masks"
    tokens = torch.arange(3 * LENGTH).view(3, LENGTH) % model.graph.states
    rows, positions = model.graph.moving(tokens).nonzero(as_tuple=True)
    return {kind: (model.log_score(tokens, TIMES, rows, positions, label), (1 - TIMES)[rows])}


def flexible(model, label):
    text = PackedTokens.of_texts(torch.tensor([0, MASK, MASK, 1, MASK]), torch.tensor([3, 0, 2]))
    queries = (text.tokens == MASK).nonzero()[:, 0]
    law, answer = model.ask(text, TIMES, queries, label)
    said = {"law": (law, (1 - TIMES)[text.sequence_ids[queries]])}
    gaps = torch.repeat_interleave(1 - TIMES, text.lengths + 1)
    if answer.counts is None:
        return said | {"rate": (answer.gaps.log(), gaps)}
    sizes = torch.arange(LENGTH + 1.0).double()
    torch.testing.assert_close(answer.gaps, answer.counts.softmax(-1) @ sizes)
    return said | {"counts": (answer.counts.log_softmax(-1), gaps)}


@torch.no_grad()
def asked(model, label):
    return globals()[model.family](model, label)


def tilted(kind, known, nothing, weight):
    """p(c)^(1+w) / p(nothing)^w, and what each kind makes of that."""
    mixed = torch.where(known == 0, 0, known ** (1 + weight) / nothing**weight)
    if kind == "rate":
        return mixed.clamp(max=LENGTH)
    if kind == "score of masks":  # the last entry is the mask's ratio to itself
        total = known[:, :-1].sum(-1, keepdim=True)
        tokens = mixed[:, :-1] / mixed[:, :-1].sum(-1, keepdim=True)
        return torch.cat([tokens * total, torch.ones_like(total)], -1)
    return mixed if kind == "score" else mixed / mixed.sum(-1, keepdim=True)


@every_case
@both_ramps
def test_guided_predictions_are_the_formula(case, ramp):
    model = build(case).double()
    conditional, unconditional = asked(model, LABELS), asked(model, NONE)
    for kind, (ours, share) in asked(guided(model, WEIGHT, ramp), LABELS).items():
        known, nothing = (said[kind][0].double().exp() for said in (conditional, unconditional))
        weight = WEIGHTS[ramp](share.double()).view(-1, *[1] * (ours.ndim - 1))
        expected = tilted(kind, known, nothing, weight)
        torch.testing.assert_close(ours.double().exp(), expected, rtol=1e-5, atol=1e-7)
        assert float((known - nothing).abs().max()) > 0.02  # the label matters


def test_expected_gaps_are_at_most_the_length():
    model = build("flexmdm").double()
    known, nothing = (asked(model, label)["rate"][0].exp() for label in (LABELS, NONE))
    free = known**31 / nothing**30
    assert 0 < int((free > LENGTH).sum()) < len(free)
    gaps = asked(guided(model, 30.0), LABELS)["rate"][0].exp()
    torch.testing.assert_close(gaps, free.clamp(max=LENGTH))


@every_case
def test_both_predictions_come_from_one_pass(case, monkeypatch):
    model, calls = build(case).double(), []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    if model.family == "causal":
        extend = model.network.extend
        monkeypatch.setattr(model.network, "extend", lambda *a: calls.append(1) or extend(*a))
    asked(guided(model, 2.0), LABELS)
    assert len(calls) == (2 if model.family == "causal" else 1)  # it is asked twice


@every_case
def test_weight_zero_is_no_guidance(case):
    model = build(case)
    options = {"label": LABEL, "seed": 3} | ({} if case == "ar" else {"steps": 4})
    plain = sample(model, 12, **options)
    assert torch.equal(sample(model, 12, guidance=0.0, **options), plain)
    assert not torch.equal(sample(model, 12, guidance=3.0, **options), plain)
    theirs = asked(model.double(), LABELS)
    for kind, (ours, _) in asked(guided(model, 0.0), LABELS).items():
        torch.testing.assert_close(ours, theirs[kind][0], rtol=0, atol=1e-6)


# Laws --------------------------------------------------------------------------------------------


def draw(model, ramp, **options):
    chosen = {"label": LABEL, "guidance": WEIGHT, "guidance_schedule": ramp}
    return sample(model, SAMPLES, seed=1, **chosen, **options)


def assert_pulled(law, known, nothing):
    """What says how surely a sample has the label, log p(x | c) / p(x | nothing), grows."""
    evidence = (known / nothing).log()
    assert float((law * evidence).sum()) > 1.2 * float((known * evidence).sum())


def table(seed):
    return tables.TableNetwork(tables.random_logits(2, seed), drift=0.7)


def test_masked():
    """Ramps by the share of revealed tokens are in `test_image_laws.py`."""
    pair = tables.leaning_pair(table)
    networks = LabelledNetwork(*pair), MixedNetwork(*pair, WEIGHTS["constant"]), *pair
    models = [MD4(network, mask_id=MASK) for network in networks]
    grid = sampling_grid("uniform", 3)
    laws = [tables.chain_law(model, 2, grid, model.schedule) for model in models[1:]]
    assert_pulled(*laws)
    assert_law(draw(models[0], "constant", steps=3), laws[0])


@both_ramps
def test_autoregressive(ramp):
    model, x = build("ar", length=3), tables.all_sequences(3)
    queries, logits = Queries(*torch.ones_like(x).nonzero(as_tuple=True)), []
    for label in (LABEL, CLASSES):
        told = {"queries": queries, "label": torch.full((len(x),), label)}
        with torch.no_grad():
            found = model.network(model.shifted(x), **told)[:, :VOCAB]
        logits.append(found.double().view(*x.shape, VOCAB))
    weight = WEIGHTS[ramp](torch.arange(3)[:, None] / 2)
    mixed = (1 + weight) * logits[0] - weight * logits[1]
    chosen = (each.log_softmax(-1).gather(-1, x[..., None]) for each in (mixed, *logits))
    laws = [each.sum((1, 2)).exp() for each in chosen]
    assert_pulled(*laws)
    assert_law(draw(model, ramp), laws[0])


@both_ramps
@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_d3pm(kind, ramp):
    transition, matrices = both(kind)
    pair = tables.leaning_pair(lambda seed: TimedTable(timed_logits(transition.steps, 2, seed)))
    known, nothing = (network.table.detach() for network in pair)
    weight = WEIGHTS[ramp](1 - torch.arange(5) / 4)[:, None, None, None]
    mixed = (1 + weight) * known - weight * nothing
    laws = [naive_law(logits, matrices, [4, 2, 0]) for logits in (mixed, known, nothing)]
    assert_pulled(*laws)
    assert_law(draw(D3PM(LabelledNetwork(*pair), transition=transition), ramp, steps=2), laws[0])


@both_ramps
def test_genmd4(ramp):
    pair = tables.leaning_pair(table)
    networks = LabelledNetwork(*pair), MixedNetwork(*pair, WEIGHTS[ramp]), *pair
    models = [GenMD4(network) for network in networks]
    for model in models:
        model.raw = nn.Parameter(torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64))
    grid = sampling_grid("uniform", 3)
    laws = [chain_law(model, [MASK, MASK], grid) for model in models[1:]]
    assert_pulled(*laws)
    assert_law(draw(models[0], ramp, steps=3), laws[0])


@both_ramps
@both_samplers
@both_graphs
def test_sedd(chain, sampler, ramp):
    graph = CHAINS[chain]
    pair = tables.leaning_pair(lambda seed: Scores(graph, seed, drift=5e-4))
    mixed = MixedNetwork(*pair, WEIGHTS[ramp], keep_total=chain == "absorbing")
    networks = LabelledNetwork(*pair), mixed, *pair
    models = [SEDD(network, graph=graph, conditioning="time") for network in networks]
    laws = [rule_law(model, sampler, 3) for model in models[1:]]
    assert_pulled(*laws)
    assert_law(draw(models[0], ramp, sampler=sampler, steps=3), laws[0])


@both_ramps
def test_gaussian(ramp):
    weights = (None, WEIGHTS[ramp], torch.zeros_like, lambda share: 0 * share - 1)
    models = [two_tokens(MixedFormula(-0.5, 0.4, weight), steps=4) for weight in weights]
    laws = [token_law(model) for model in models[1:]]
    assert_pulled(*laws)
    counts = draw(models[0], ramp)[:, 0].bincount(minlength=2)
    assert stats.chisquare(counts, laws[0] / laws[0].sum() * SAMPLES).pvalue > LEVEL


@both_ramps
@pytest.mark.parametrize("counts", [False, True])
def test_flexmdm(counts, ramp):
    """Under a linear schedule of insertion, 1 - t is alpha."""
    pair = [growing.Perturbed(growing.random_law(3, seed), seed) for seed in (1, 2)]
    model = growing.LabelledModel(*pair, length=4, counts=counts)
    mixed = growing.Mixed(*pair, WEIGHTS[ramp], counts, limit=4)
    rule = model.process, "schedule", counts
    laws = [growing.Chain(said, *rule, room=4).law(3) for said in (mixed, *pair)]
    assert_pulled(*(torch.tensor([law[text] for text in laws[0]]) for law in laws))
    growing.assert_texts(draw(model, ramp, steps=3), laws[0])


# Continuous data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_guided_images_are_those_of_guided_answers(prediction):
    """Ho and Salimans guide the noise; for x_0 or v that is the same, since all are affine."""
    torch.manual_seed(0)
    network, calls, labels = UNet(1, multipliers=(1,), classes=CLASSES), [], torch.tensor([0, 2])
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)

    def answer(x, t):
        return (1 + WEIGHT) * network(x, t, labels) - WEIGHT * network(x, t, NONE[:2])

    sizes, chosen = {"shape": (1, 4, 4), "count": 2, "seed": 1}, {"label": labels}
    by_hand = DDPM(answer, steps=5, prediction=prediction)
    model = DDPM(network, steps=5, prediction=prediction)
    expected, plain = sample_ddpm(by_hand, **sizes), sample_ddpm(model, **sizes, **chosen)
    network.register_forward_hook(lambda *_: calls.append(1))
    drawn = sample_ddpm(model, guidance=WEIGHT, **sizes, **chosen)
    assert len(calls) == 5
    torch.testing.assert_close(drawn, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(sample_ddpm(model, guidance=0.0, **sizes, **chosen), plain)
    assert float((drawn - plain).abs().max()) > 0.01
