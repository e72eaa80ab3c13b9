"""FlexMDM by enumeration: posteriors, the loss as a likelihood, laws of steps, drafts, packing."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita.config.method import MethodOptions
from partita.contracts.batch import Batch
from partita.contracts.packed import PackedTokens
from partita.errors import InputError
from partita.methods import METHODS
from partita.methods.flexmdm import FlexMDM, Thinned
from partita.networks import TransformerConfig
from partita.networks.flexible import Answer, FlexibleTransformer
from partita.networks.options import TransformerOptions
from partita.processes.insertion import Interpolant, bregman, free_runs, order_nats
from partita.randomness import Noise
from partita.samplers import Prompt, sample
from partita.samplers.drafts import Draft, fitting
from partita.samplers.insertion_rules import RULES, binomial, poisson
from partita.samplers.state import SamplerState
from partita.schedules import make_schedule
from tests.golden.cases import own
from tests.laws.growing import (
    END,
    MASK,
    TOO_LONG,
    VOCAB,
    Chain,
    GrowingModel,
    Perturbed,
    Posteriors,
    TableFlexMDM,
    TableTransformer,
    all_texts,
    assert_texts,
    configurations,
    entropy,
    random_law,
    rate_law,
    shares,
    texts_of,
    total_variation,
    what_is_left,
)
from tests.laws.tables import LEVEL

ORACLE = own("flex/flex_oracle")
COMBOS = {"lin+lin": ("linear", "linear"), "sin+lin": ("half-cosine", "linear")}
PAIRS = [("linear", "linear"), ("half-cosine", "cosine"), ("polynomial", "cosine-squared")]
SAMPLES = 20_000
combos = pytest.mark.parametrize("combo", COMBOS)
pairs = pytest.mark.parametrize("pair", PAIRS, ids="+".join)


def process_of(pair):
    return Interpolant(*map(make_schedule, pair))


def oracle_text(row):
    return tuple(v for v in row.tolist() if v != END)


ORACLE_LAW = {
    oracle_text(row): float(p)
    for row, p in zip(ORACLE["data_strings"], ORACLE["data_prob"], strict=True)
}
ORACLE_STATES = [oracle_text(row) for row in ORACLE["states"]]


# Posteriors and states ---------------------------------------------------------------------------


def test_posteriors_are_the_oracle_s():
    table = Posteriors(ORACLE_LAW)
    for level, alpha in enumerate(ORACLE["alpha_grid"].tolist()):
        for number, state in enumerate(ORACLE_STATES):
            said = table.at(state, alpha)
            gaps = ORACLE["oracle_expected_gaps"][level, number]
            np.testing.assert_allclose(gaps[: len(state) + 1], said.gaps, atol=1e-9)
            masks = [i for i, v in enumerate(state) if v == MASK]
            tokens = ORACLE["oracle_token_posterior"][level, number, masks]
            np.testing.assert_allclose(tokens, said.tokens, atol=1e-9)


@combos
def test_states_have_the_oracle_s_law(combo):
    """Our time runs from the data to nothing, the oracle's the other way."""
    process = process_of(COMBOS[combo])
    for index, time in enumerate(ORACLE[f"{combo}.t_grid"].tolist()):
        share, law = shares(process, 1 - time), Counter()
        assert share[1] == pytest.approx(float(ORACLE[f"{combo}.mask_prob"][index]), abs=1e-6)
        for text, p in ORACLE_LAW.items():
            for kinds in configurations(len(text)):
                law[what_is_left(text, kinds)] += p * share[list(kinds)].prod()
        found = [law[state] for state in ORACLE_STATES]
        np.testing.assert_allclose(found, ORACLE[f"{combo}.state_marginals"][index], atol=1e-6)


@pairs
@pytest.mark.parametrize("t", [0.03, 0.4, 0.9])
def test_tokens_are_gone_masked_or_clean_as_their_schedules_say(pair, t):
    process, rows = process_of(pair), 20_000
    u = np.random.default_rng(7).random((2, rows, 1))
    gone, masked = process.times(*torch.from_numpy(u))
    assert bool((masked <= gone).all())
    tokens = torch.zeros(rows, 1, dtype=torch.int64)
    times = torch.full((rows,), t, dtype=torch.float64)
    state = process.state(tokens, tokens == 0, times, gone, masked, MASK)
    there, hidden = len(state.text.tokens), int(state.hidden.sum())
    expected = shares(process, t) * rows
    assert stats.chisquare([rows - there, hidden, there - hidden], expected).pvalue > LEVEL


def test_masks_and_missing_tokens_come_back_with_the_schedules_chances():
    """A token that is a mask at t is clean at s, and a gone one there, as often as is claimed."""
    process, rows, t, s = process_of(PAIRS[1]), 40_000, 0.7, 0.4
    gone, masked = process.times(*torch.from_numpy(np.random.default_rng(3).random((2, rows, 1))))
    now, before = (torch.tensor(x, dtype=torch.float64) for x in (t, s))
    was_mask, was_gone = (masked < t) & (t <= gone), gone < t
    for schedule, group, back in (
        (process.unmasking, was_mask, s <= masked),
        (process.insertion, was_gone, s <= gone),
    ):
        chance = float(schedule.reveal_probability(before, now))
        found = stats.binomtest(int((back & group).sum()), int(group.sum()), chance)
        assert found.pvalue > LEVEL


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 2), st.booleans(), st.booleans()),
            min_size=5,
            max_size=5,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_states_are_those_of_plain_lists(rows):
    """Tokens, kinds (0 gone, 1 mask, 2 clean), which are real (anywhere) and which are kept."""
    tokens, kinds, real, kept = (torch.tensor(rows)[..., part] for part in range(4))
    real, kept = real.bool(), kept.bool()
    t = torch.full((len(rows),), 0.5, dtype=torch.float64)
    gone, masked = (kinds > 0).double(), (kinds == 2).double()
    state = Interpolant.state(tokens, real, t, gone, masked, MASK, kept)
    packed, hidden, source, gaps, lengths, runs = [], [], [], [], [], []
    for row in rows:
        missing, length, free, row_runs = 0, 0, 0, []
        for column, (token, kind, is_real, is_kept) in enumerate(row):
            if not is_real:
                continue
            free += not is_kept
            if is_kept:
                row_runs.append(free)
                free = 0
            if kind == 0 and not is_kept:
                missing += 1
                continue
            masks = kind == 1 and not is_kept
            packed.append(MASK if masks else token)
            hidden.append(masks)
            source.append(column)
            gaps.append(missing)
            missing, length = 0, length + 1
        gaps.append(missing)
        lengths.append(length)
        runs.append(sorted(x for x in [*row_runs, free] if x))
    assert state.text.tokens.tolist() == packed
    assert state.text.lengths.tolist() == lengths
    assert state.hidden.tolist() == hidden
    assert state.source.tolist() == source
    assert state.gaps.tolist() == gaps
    found = free_runs(real, kept).tolist()
    assert [sorted(x for x in row if x) for row in found] == runs


# The loss is a likelihood ------------------------------------------------------------------------


def quadrature(nodes=40):
    """Times of [0, 1] and their shares: Gauss-Legendre in v, t = v^4, for the logarithm at 0."""
    points, parts = np.polynomial.legendre.leggauss(nodes)
    v = (points + 1) / 2
    return v**4, parts / 2 * 4 * v**3


def padded(texts, fill=END):
    """Rows of at least one column, and which of them are real."""
    width = max(1, *map(len, texts))
    rows = [[*text, *[fill] * (width - len(text))] for text in texts]
    real = [[i < len(text) for i in range(width)] for text in texts]
    return torch.tensor(rows), torch.tensor(real)


def method_of(table, pair=PAIRS[0], length=4, **options):
    network = TableTransformer(table, length, **options)
    return TableFlexMDM(network, insertion=make_schedule(pair[0]), schedule=make_schedule(pair[1]))


def loss_parts(model, text, times, kept=()):
    """What masks and gaps cost at each time [T, 2], over all that may be left of a text."""
    free = [i for i in range(len(text)) if i not in kept]
    kinds = np.full((3 ** len(free), len(text)), 2)
    kinds[:, free] = configurations(len(free))
    rows = len(kinds)
    tokens, real = padded([text] * rows * len(times))
    held = torch.zeros_like(real)
    held[:, list(kept)] = True
    kind = torch.zeros_like(tokens)
    kind[:, : len(text)] = torch.from_numpy(np.tile(kinds, (len(times), 1)))
    t = torch.from_numpy(np.repeat(times, rows))
    gone, masked = (kind > 0).double() * 2 - 0.5, (kind == 2).double() * 2 - 0.5
    state = model.process.state(tokens, real, t, gone, masked, MASK, held)
    loss = model.loss_given(Batch.of(tokens, is_token=real), Thinned(state, t, kept=held))
    weight = model.process.unmasking.weight(t)
    masks = weight * loss.cross_entropy.sum(-1)
    order = model.order_nats[free_runs(real, held)].sum(-1)
    parts = torch.stack([masks, loss.per_sequence - masks + order], -1).numpy()
    chances = np.stack([shares(model.process, t) for t in times])[:, kinds[:, free]].prod(-1)
    return (parts.reshape(len(times), rows, 2) * chances[..., None]).sum(1)


def integral(model, text, kept=()):
    """The bound of a text, by quadrature over t; and its two parts before the order is taken."""
    times, parts = quadrature()
    both = parts @ loss_parts(model, text, times, kept)
    runs = np.diff([-1, *kept, len(text)]) - 1
    return float(both.sum() - model.order_nats[torch.from_numpy(runs)].sum()), both


@combos
def test_losses_are_the_oracle_s(combo):
    model, table = method_of(Posteriors(ORACLE_LAW), COMBOS[combo]), ORACLE[f"{combo}.oracle_loss"]
    times = 1 - ORACLE[f"{combo}.t_grid"].numpy()
    inner = (times > 0) & (times < 1)
    found = sum(p * loss_parts(model, text, times[inner]) for text, p in ORACLE_LAW.items())
    np.testing.assert_allclose(found, table[torch.from_numpy(inner)], atol=1e-6)
    whole = sum(p * integral(model, text)[1] for text, p in ORACLE_LAW.items())
    results = ORACLE.facts["results"]["combos"][combo]
    expected = [results["integral_unmask_loss"], results["integral_insertion_loss"]]
    np.testing.assert_allclose(whole, expected, atol=1e-6)


def test_the_order_costs_what_all_orders_cost_on_average():
    def cost(order):
        """log of how many tokens are missing in the gap of each one, as they come."""
        total = 0.0
        for turn, token in enumerate(order):
            there = [-1, *sorted(order[:turn]), len(order)]
            low, high = max(x for x in there if x < token), min(x for x in there if x > token)
            total += math.log(high - low - 1)
        return total

    for n, nats in enumerate(order_nats(6).tolist()):
        orders = list(itertools.permutations(range(n)))
        assert nats == pytest.approx(sum(map(cost, orders)) / len(orders), abs=1e-12)
        below = math.lgamma(n + 1) - nats
        assert below > 0.2 if n > 2 else abs(below) < 1e-12


@pairs
def test_the_loss_of_exact_posteriors_is_the_likelihood(pair):
    """For every text, and so H + E[c(n)] in the mean; log n! instead of c would fall below."""
    law = random_law(3, seed=2)
    model = method_of(Posteriors(law), pair)
    mean, order = 0.0, order_nats(3)
    for text, p in law.items():
        bound, parts = integral(model, text)
        assert bound == pytest.approx(-math.log(p), abs=1e-6)
        mean += p * parts.sum()
        if len(text) > 2:
            assert parts.sum() - math.lgamma(len(text) + 1) < -math.log(p) - 0.2
    added = sum(p * float(order[len(text)]) for text, p in law.items())
    assert mean == pytest.approx(entropy(law) + added, abs=1e-6)


def test_longer_texts_too():
    law = {(0, 1, 1, 0): 0.3, (1, 1, 1, 1): 0.2, (0, 1): 0.1, (1, 1, 0): 0.15, (): 0.25}
    model = method_of(Posteriors(law))
    for text, p in law.items():
        assert integral(model, text)[0] == pytest.approx(-math.log(p), abs=1e-6)


def test_rates_of_exact_posteriors_give_the_data():
    law = random_law(2, seed=5)
    assert total_variation(rate_law(Posteriors(law), process_of(PAIRS[1]), 2), law) < 1e-5


@pytest.mark.parametrize(("pair", "size"), [(PAIRS[0], 0.2), (PAIRS[1], 0.7)])
def test_the_bound_is_above_the_likelihood_of_any_model(pair, size):
    """The law of a model is that of its rates. With log n! a good model would fall below it."""
    table = Perturbed(random_law(3, seed=0), 1, size)
    model, law = method_of(table, pair), rate_law(table, process_of(pair), 3)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    slack, violated = [], 0
    for text, p in law.items():
        bound, parts = integral(model, text)
        slack.append(bound + math.log(p))
        violated += parts.sum() - math.lgamma(len(text) + 1) < -math.log(p) - 1e-2
    assert min(slack) > -1e-4
    assert max(slack) > size / 100  # something is lost: the model is inexact
    assert violated or size > 0.5


def test_a_prompt_cuts_the_order_into_runs():
    """Kept tokens stay. The bound is that of the text and of where the prompt lies in it."""
    law = random_law(3, seed=4)
    table = Posteriors(law)
    model = method_of(table)
    for text, kept in [((0, 1, 1), (1,)), ((0, 0, 1), (0,)), ((1, 0), (0, 1)), ((1, 0, 1), (0, 2))]:
        prompt = tuple(text[i] for i in kept)
        ways = sum(p for p, *_ in table.ways(prompt))
        bound = integral(model, text, kept)[0]
        assert bound == pytest.approx(-math.log(law[text] / ways), abs=1e-6)


TEXTS = [(), (0,), (1, 0), (0, 1, 1), (1, 1, 1)]


def test_drawn_losses_average_to_the_enumerated_ones():
    """Rows of all lengths in one batch; groups of runs vary as their standard errors say."""
    law = random_law(3, seed=2)
    model = method_of(Perturbed(law, 3, size=0.4), PAIRS[1])
    exact = np.mean([integral(model, text)[0] for text in TEXTS])
    tokens, real = padded(TEXTS * 24)
    noise, runs, groups = Noise.for_batch(7, len(tokens)), 120, 24
    means = []
    for step in range(runs):
        loss = model.loss(Batch.of(tokens, is_token=real), noise, step)
        means.append(float(loss.per_sequence.mean()))
        assert float(loss.objective) == pytest.approx(float(loss.per_token.sum() / real.sum()))
        assert int(loss.tokens) == int(real.sum())
    error = np.std(means, ddof=1) / runs**0.5
    assert abs(np.mean(means) - exact) < 4 * error
    grouped = np.reshape(means, (groups, -1)).mean(-1)
    spread = ((grouped - exact) ** 2).sum() / (error**2 * groups)
    assert LEVEL < stats.chi2(groups).cdf(spread) < 1 - LEVEL


def test_drawn_losses_with_prompts():
    law = random_law(3, seed=4)
    model, text = method_of(Posteriors(law)), (0, 1, 1)
    exact = integral(model, text, (1,))[0]
    tokens, real = padded([text] * 100)
    kept = torch.tensor([[False, True, False]]).expand_as(real)
    means = []
    for step in range(100):
        loss = model.loss(Batch.of(tokens), Noise.for_batch(5, 100), step, kept=kept)
        assert not bool((loss.counted & kept).any())
        means.append(float(loss.per_sequence.mean()))
    assert abs(np.mean(means) - exact) < 4 * np.std(means) / 10
    everything = model.loss(Batch.of(tokens), Noise.for_batch(5, 100), kept=real)
    assert not bool(everything.counted.any())
    assert float(everything.cross_entropy.abs().max()) == 0


def test_padding_never_counts_wherever_it_stands():
    model = small()
    tokens, real = padded(TEXTS)
    noise = Noise.for_batch(3, len(TEXTS))
    loss = model.loss(Batch.of(tokens, is_token=real), noise)
    assert not bool((loss.counted & ~real).any())
    assert not loss.per_token[1:][~real[1:]].any()  # an empty text has its nats somewhere
    other = model.loss(Batch.of(torch.where(real, tokens, 999), is_token=real), noise)
    torch.testing.assert_close(loss.per_token, other.per_token, rtol=0, atol=0)
    # With a hole the text is the same, and so is its loss at the same times of its tokens.
    t = torch.full((1,), 0.5, dtype=torch.float64)
    apart, held = torch.tensor([[0, 9, 1, 9, 1, 9]]), torch.tensor([[1, 0, 1, 0, 1, 0]]).bool()
    found = []
    for row, valid in ((apart, held), (apart[held][None], held[held][None])):
        gone, masked = ((row == 0) | ~valid).double(), torch.zeros_like(row).double()
        state = model.process.state(row, valid, t, gone, masked, MASK)
        found.append(model.loss_given(Batch.of(row, is_token=valid), Thinned(state, t)))
    torch.testing.assert_close(found[0].per_token[held], found[1].per_token[0])
    assert not found[0].per_token[~held].any()


def test_texts_may_all_be_empty():
    model = small()
    nothing, real = padded([(), ()])
    loss = model.loss(Batch.of(nothing, is_token=real), Noise.for_batch(0, 2))
    loss.objective.backward()
    assert float(loss.per_sequence.detach().min()) > 0  # masks are expected, and do not come
    assert int(loss.tokens) == 1  # the divisor
    loss = model.loss(Batch.of(torch.tensor([[0, 1]])), Noise.for_batch(0, 1))  # no `valid`
    assert bool(torch.isfinite(loss.objective))


def test_rows_are_the_same_in_any_batch():
    model = small()
    tokens, real = padded(TEXTS)
    noise = Noise.for_batch(3, 5)
    whole = model.loss(Batch.of(tokens, is_token=real), noise, 4)
    some = noise.select(torch.arange(2, 5))
    part = model.loss(Batch.of(tokens[2:], size=5, is_token=real[2:]), some, 4)
    torch.testing.assert_close(part.per_token, whole.per_token[2:], rtol=1e-4, atol=1e-5)


def test_a_distribution_of_counts_learns_by_its_own_cross_entropy():
    table = Perturbed(random_law(3, seed=2), 3)
    model, plain = (method_of(table, counts=counts) for counts in (True, False))
    tokens, real = padded(TEXTS * 8)
    noise = Noise.for_batch(1, len(tokens))
    found, other = (m.loss(Batch.of(tokens, is_token=real), noise) for m in (model, plain))
    torch.testing.assert_close(found.per_token, other.per_token)  # the bound is the mean's
    assert float(found.objective) != pytest.approx(float(other.objective))
    # By hand, for one state: the text (0, 1, 1) of which the middle is left, as a mask.
    one, t = torch.tensor([[0, 1, 1]]), torch.tensor([0.5], dtype=torch.float64)
    valid = torch.ones_like(one, dtype=torch.bool)
    gone = torch.tensor([[0.0, 1.0, 0.0]]).double()
    state = model.process.state(one, valid, t, gone, 0 * gone, MASK)
    said = table.at((MASK,), 0.5)
    expected = 2 * -np.log([said.tokens[0, 1], *said.counts[:, 1]]).sum() - float(order_nats(3)[3])
    loss = model.loss_given(Batch.of(one, is_token=valid), Thinned(state, t))
    assert float(loss.objective) == pytest.approx(expected / 3)


def test_the_gap_loss_is_least_at_the_mean():
    counts = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    at = torch.linspace(0.1, 5, 491, dtype=torch.float64)
    mean = bregman(counts[:, None].expand(-1, 491), at.expand(3, -1)).mean(0)
    assert float(at[mean.argmin()]) == pytest.approx(5 / 3, abs=0.01)
    assert float(bregman(counts, counts.clamp(min=1e-12)).abs().max()) < 1e-11


@pytest.mark.parametrize("time", [2.0**-53, 1e-8, 1.0])
@pytest.mark.parametrize("gaps", ["expectation", "distribution"])
def test_float32_is_finite_at_the_ends_of_time(time, gaps):
    """Also where the network is sure that nothing is missing, and is wrong: it has to learn."""
    model = small(gaps=gaps)
    with torch.no_grad():
        model.network.gap_head.out.bias.fill_(-20.0)
        model.network.gap_head.out.bias[:1] = 20.0 if gaps == "distribution" else -20.0
    tokens = torch.tensor([[0, 1, 1], [1, 0, 0]])
    real = torch.ones_like(tokens, dtype=torch.bool)
    t = torch.full((2,), time, dtype=torch.float64)
    gone = torch.tensor([[0.0, 1.0, 1.0]]).double().expand(2, -1)
    state = model.process.state(tokens, real, t, gone, gone, MASK)
    loss = model.loss_given(Batch.of(tokens, is_token=real), Thinned(state, t))
    loss.objective.backward()
    assert bool(torch.isfinite(loss.objective))
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert float(model.network.gap_head.out.bias.grad.abs().max()) > 0.1 / time * 0.5


# Laws of steps -----------------------------------------------------------------------------------

STEPS = (4, 8, 16, 32, 64, 128, 256)
# Poisson numbers may put several masks into a gap in which one is missing: twice as many texts
# become too long as with Euler's rule. The reference's own tau-leaping is as far from the data.
# With one mask at a time tau-leaping is as near as the others.
LIMITS = {
    ("schedule", False, None): 1.3,
    ("schedule", True, None): 1.3,
    ("euler", False, None): 1.3,
    ("tau-leaping", False, 1): 1.3,
    ("tau-leaping", False, None): 1.45,
}


@combos
def test_the_enumeration_is_that_of_the_oracle(combo):
    table, process = Posteriors(ORACLE_LAW), process_of(COMBOS[combo])
    for rule, key in (
        ("reference euler", "final_official_euler_exact"),
        ("reference hazard", "final_exact_hazard_exact"),
    ):
        for index in (0, 2, 4):
            law = Chain(table, process, rule).law(STEPS[index])
            found = [law[text] for text in ORACLE_LAW]
            np.testing.assert_allclose(found, ORACLE[f"{combo}.{key}"][index], atol=1e-9)


@combos
@pytest.mark.parametrize(("rule", "counts", "most"), LIMITS)
def test_texts_tend_to_the_data(combo, rule, counts, most):
    chain = Chain(Posteriors(ORACLE_LAW), process_of(COMBOS[combo]), rule, counts, most=most)
    results = ORACLE.facts["results"]["combos"][combo]
    reference = results["TV_exact_official_euler_rule"]
    found = [total_variation(chain.law(steps), ORACLE_LAW) for steps in STEPS]
    for steps, distance in zip(STEPS, found, strict=True):
        assert distance <= LIMITS[rule, counts, most] * reference[str(steps)]
        if rule == "tau-leaping" and most is None:
            assert distance <= 1.3 * results["TV_MC_official_tau_leaping(N=60k)"][str(steps)]
    assert all(after < 0.7 * before for before, after in itertools.pairwise(found))
    assert found[-1] < 0.55 * found[-2]


@pytest.mark.parametrize("rule", ["schedule", "tau-leaping"])
def test_revealing_from_the_left_keeps_the_limit(rule):
    law = random_law(3, seed=1)
    table, process = Posteriors(law), process_of(PAIRS[1])
    found = {
        leftmost: [
            total_variation(Chain(table, process, rule, leftmost=leftmost).law(steps), law)
            for steps in (8, 32, 128)
        ]
        for leftmost in (False, True)
    }
    assert found[True] != found[False]
    for distances in found.values():
        assert distances[2] < 0.3 * distances[1] < 0.15 * distances[0]
        assert distances[2] < 0.01


# The sampler -------------------------------------------------------------------------------------

LAW3 = random_law(3, seed=1)
ROOM = 4


def drawn(model, chain, steps, seed, start=(), opened=None, room=ROOM, **options):
    """Samples of the library's sampler with the options of a chain."""
    prompt = None
    if start or opened is not None:
        tokens = torch.tensor([start], dtype=torch.int64)
        gaps = None if opened is None else torch.tensor([opened])
        prompt = Prompt(tokens, tokens != MASK, gaps)
    if chain.leftmost:
        options["confidence"] = "position"
    return sample(
        model,
        SAMPLES,
        prompt=prompt,
        length=room,
        steps=steps,
        rule=chain.rule,
        seed=seed,
        **options,
    )


@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("pair", PAIRS[:2], ids="+".join)
@pytest.mark.parametrize(("rule", "counts", "most"), LIMITS)
def test_samples_follow_the_enumerated_law(rule, counts, most, pair, leftmost):
    """With a table of no data law, and with room for one token more than any text has."""
    table = Perturbed(LAW3, 5)
    model = GrowingModel(table, *pair, counts=counts)
    chain = Chain(table, process_of(pair), rule, counts, leftmost, ROOM, most)
    assert_texts(drawn(model, chain, 3, seed=11, most=most), chain.law(3))


def test_many_steps_give_the_data():
    model = GrowingModel(Posteriors(ORACLE_LAW), "half-cosine", "linear")
    samples = sample(model, SAMPLES, steps=32, seed=1)
    law = Chain(Posteriors(ORACLE_LAW), model.process, "schedule").law(32)
    assert total_variation(law, ORACLE_LAW) < 0.03
    assert_texts(samples, law, longest=2)
    assert TOO_LONG in law


@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize(("rule", "counts"), [("schedule", True), ("tau-leaping", False)])
def test_masks_that_do_not_fit_are_left_out_at_random(room, rule, counts):
    table = Posteriors(LAW3)
    model = GrowingModel(table, counts=counts)
    chain = Chain(table, model.process, rule, counts, room=room)
    samples = drawn(model, chain, 3, seed=13, room=room)
    assert samples.shape[1] == room
    assert_texts(samples, chain.law(3))


def within(prompt, text):
    rest = iter(text)
    return all(token in rest for token in prompt)


PROMPTS = {
    "open at the end": ((1,), (False, True)),
    "open between": ((0, 1), (False, True, False)),
    "a blank": ((MASK, 1), (True, False, False)),
    "closed": ((MASK, MASK), (False, False, False)),
    "open everywhere": ((0,), (True, True)),
}


@pytest.mark.parametrize("which", PROMPTS)
@pytest.mark.parametrize("rule", ["schedule", "tau-leaping"])
def test_prompts_grow_in_their_open_gaps_alone(which, rule):
    start, opened = PROMPTS[which]
    table = Perturbed(LAW3, 6)
    model = GrowingModel(table, *PAIRS[1])
    chain = Chain(table, model.process, rule, room=ROOM)
    samples = drawn(model, chain, 3, seed=17, start=start, opened=opened)
    assert_texts(samples, chain.law(3, start, opened))
    for text in set(texts_of(samples)):
        assert within([v for v in start if v != MASK], text)
        if not opened[0] and start[0] != MASK:
            assert text[0] == start[0]
        if not opened[-1] and start[-1] != MASK:
            assert text[-1] == start[-1]
        if not any(opened):
            assert len(text) == len(start)
    if any(opened):
        assert max(map(len, texts_of(samples))) > len(start)


def test_a_prompt_without_open_gaps_does_not_grow():
    model, prompt = GrowingModel(Posteriors(LAW3)), torch.tensor([[0, MASK, 1]])
    samples = sample(model, 50, prompt=Prompt(prompt, prompt != MASK), steps=4)
    assert samples.shape == (50, 3)
    assert bool((samples[:, [0, 2]] == torch.tensor([0, 1])).all())


def test_an_empty_prompt_is_none_at_all():
    model, nothing = GrowingModel(Posteriors(LAW3)), torch.zeros(1, 0, dtype=torch.int64)
    free = sample(model, 100, steps=4, seed=3)
    opened = Prompt(nothing, nothing.bool(), torch.ones(1, 1, dtype=torch.bool))
    assert torch.equal(sample(model, 100, prompt=opened, steps=4, seed=3), free)
    assert sample(model, 7, prompt=Prompt(nothing, nothing.bool()), steps=4).shape == (7, 0)
    assert sample(model, 7, steps=1).shape == (7, 0)  # the last step inserts nothing


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rule": "tau-leaping", "length": 2},
        {"rule": "euler", "confidence": "random"},
        {"confidence": "probability", "window": 2.0},
    ],
)
def test_samples_are_the_same_in_any_batch(options):
    model = GrowingModel(Posteriors(LAW3), counts=True)
    whole = texts_of(sample(model, 40, steps=5, seed=9, **options))
    for first in range(0, 40, 8):
        part = sample(model, 8, first=first, steps=5, seed=9, **options)
        assert texts_of(part) == whole[first : first + 8]
    assert len(set(whole)) > 4


def test_a_random_order_is_that_of_the_rule_alone():
    """As many masks as the rule says, drawn by lot: the same law as each by itself."""
    table = Perturbed(LAW3, 5)
    model = GrowingModel(table, *PAIRS[1])
    chain = Chain(table, model.process, "schedule", room=ROOM)
    assert_texts(drawn(model, chain, 4, seed=3, confidence="random"), chain.law(4))


def test_a_callback_sees_every_mask_revealed_where_it_is_now():
    model, seen = GrowingModel(Posteriors(LAW3)), []
    prompt = Prompt(torch.tensor([[1]]), torch.tensor([[True]]), torch.ones(1, 2).bool())
    final = sample(model, 30, prompt=prompt, steps=6, seed=2, callback=seen.append)
    assert [step.index for step in seen] == list(range(6))
    revealed = torch.zeros(30, dtype=torch.int64)
    for step in seen:
        state = step.state
        assert bool(state.revealed[step.rows, step.positions].all())
        assert not bool((state.tokens[state.revealed] >= MASK).any())
        revealed += torch.bincount(step.rows, minlength=30)
        assert torch.equal(state.revealed.sum(-1), revealed + 1)
        assert bool((state.tokens == 1).any(-1).all())
    assert torch.equal(seen[-1].state.tokens, final)
    lengths = torch.tensor([len(text) for text in texts_of(final)])
    assert torch.equal(seen[-1].state.lengths, lengths)


@pytest.mark.parametrize("confidence", [None, "position", "probability", "margin", "entropy"])
@pytest.mark.parametrize("gaps", ["expectation", "distribution"])
def test_networks_are_sampled_by_every_rule(confidence, gaps):
    model = small(gaps=gaps)
    for rule in RULES:
        texts = texts_of(sample(model, 5, steps=4, rule=rule, confidence=confidence, seed=1))
        assert all(v < VOCAB for text in texts for v in text)
        assert max(map(len, texts)) <= model.length
    best = sample(model, 5, steps=4, temperature=0.0, confidence=confidence)
    assert best.shape[0] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "leap"}, "rule"),
        ({"confidence": "luck"}, "confidence"),
        ({"window": 2.0}, "window: lets masks compete"),
        ({"window": 0.0, "confidence": "margin"}, "window"),
        ({"length": 9}, "length: 9 positions"),
        ({"length": 1, "prompt": [[0, 1]]}, "prompt: has 2 tokens"),
        ({"prompt": [[END]]}, "holds the end marker"),
        ({"prompt": [[MASK]]}, "holds the mask token"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    if "prompt" in options:
        tokens = torch.tensor(options["prompt"])
        options = options | {"prompt": Prompt(tokens, torch.ones_like(tokens, dtype=torch.bool))}
    with pytest.raises(InputError, match=message):
        sample(GrowingModel(Posteriors(LAW3)), steps=2, **options)


# Numbers by inversion ----------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 1e-9, 0.3, 5.0, 80.0, 1500.0])
def test_poisson_numbers_are_those_of_the_quantile(mean):
    u = np.random.default_rng(0).random(400)
    found = poisson(torch.full((400,), mean, dtype=torch.float64), torch.from_numpy(u))
    np.testing.assert_array_equal(found, stats.poisson.ppf(u, mean) if mean else 0 * u)


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3, 0.97, 1.0])
def test_binomial_numbers_are_those_of_the_quantile(p):
    random = np.random.default_rng(0)
    u, size = random.random(400), random.integers(0, 2000, 400)
    size[:100] = random.integers(0, 4, 100)
    chance = torch.tensor(p, dtype=torch.float64)
    found = binomial(torch.from_numpy(size), chance, torch.from_numpy(u))
    np.testing.assert_array_equal(found, stats.binom.ppf(u, size, p).clip(min=0))


def test_no_numbers_at_all():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert poisson(nothing, nothing).shape == (0,)
    assert binomial(nothing.long(), torch.tensor(0.5).double(), nothing).shape == (0,)


# Drafts ------------------------------------------------------------------------------------------


@st.composite
def drafts(draw):
    """Rows of tokens and masks, open gaps, and counts for each gap."""
    rows = draw(st.lists(st.lists(st.integers(0, MASK), max_size=4), min_size=1, max_size=3))
    gaps = [[draw(st.booleans()) for _ in range(len(row) + 1)] for row in rows]
    counts = [[draw(st.integers(0, 2)) for _ in range(len(row) + 1)] for row in rows]
    return rows, gaps, counts


def table_of(rows, fill, width):
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows]).view(len(rows), -1)


@settings(max_examples=100, deadline=None)
@given(drafts())
def test_drafts_grow_as_lists_do(made):
    rows, gaps, counts = made
    width = max(map(len, rows))
    lengths = torch.tensor([len(row) for row in rows])
    tokens = table_of(rows, END, width).long()
    draft = Draft(tokens, lengths, table_of(gaps, True, width + 1).bool(), MASK, END)
    moved = draft.insert(table_of(counts, 1, width + 1))
    for index, (row, opened, count) in enumerate(zip(rows, gaps, counts, strict=True)):
        text, free = [], []
        for i in range(len(row) + 1):
            added = count[i] if opened[i] else 0
            text += [MASK] * added
            free += [True] * added + [opened[i]]
            assert int(moved[index, i]) == len(text)
            text += row[i : i + 1]
        length = int(draft.lengths[index])
        assert draft.tokens[index, :length].tolist() == text
        assert bool((draft.tokens[index, length:] == END).all())
        assert draft.insertable[index].tolist()[: length + 1] == free
        assert not bool(draft.insertable[index, length + 1 :].any())
        assert draft.hidden[index].tolist()[:length] == [v == MASK for v in text]
    packed = draft.text()
    assert torch.equal(packed.padded(END, draft.tokens.shape[1]), draft.tokens)
    numbers = torch.arange(int((draft.lengths + 1).sum()))
    by_gap = draft.by_gap(numbers)
    places = torch.arange(by_gap.shape[1]) <= draft.lengths[:, None]
    assert torch.equal(by_gap[places], numbers)
    assert not by_gap[~places].any()


def test_drafts_keep_what_is_no_mask():
    state = SamplerState.blank(2, 3, MASK)
    state.write(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([0, 1]))
    draft = Draft.of(state, MASK, END)
    assert not bool(draft.insertable.any())
    draft.write(torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.int64))
    assert draft.tokens.tolist() == [[1, 0, 1], [1, 1, 1]]
    shown = draft.state()
    assert bool(shown.revealed.all())
    assert shown.lengths.tolist() == [3, 3]


def test_all_that_may_fit_is_as_likely():
    """3 of the masks 2 + 0 + 3: each of the ten ways to leave two out."""
    rows, counts = 20_000, torch.tensor([[2, 0, 3]])
    u = torch.from_numpy(np.random.default_rng(2).random((rows + 1, 5)))
    room = torch.full((rows + 1,), 3)
    room[-1] = -1  # none at all
    kept = fitting(counts.repeat(rows + 1, 1), room, u)
    assert not kept[-1].any()
    found = Counter(map(tuple, kept[:-1].tolist()))
    law = {(k, 0, 3 - k): math.comb(2, k) * math.comb(3, 3 - k) / 10 for k in range(3)}
    assert set(found) == set(law)
    assert stats.chisquare([found[k] for k in law], [rows * p for p in law.values()]).pvalue > LEVEL
    plenty = fitting(torch.tensor([[1, 0], [0, 2]]), torch.tensor([5, 1]), u[:2, :2])
    assert plenty.tolist() == [[1, 0], [0, 1]]


# The network -------------------------------------------------------------------------------------


def small(**options) -> FlexMDM:
    """A network with weights of its own in every layer, also in those that start at zero."""
    torch.manual_seed(0)
    sizes = TransformerOptions(length=6, width=16, depth=2, heads=2)
    model = MethodOptions(name="flexmdm", options=options).build(sizes, VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


PACKED = [(0, MASK, 1), (), (MASK, MASK, MASK, 0, 1), (1,), ()]


def packed(texts):
    tokens = torch.tensor([v for text in texts for v in text], dtype=torch.int64)
    return PackedTokens.of_texts(
        tokens, torch.tensor([len(text) for text in texts], dtype=torch.int64)
    )


@pytest.mark.parametrize("gaps", ["expectation", "distribution"])
def test_packed_texts_are_read_each_by_itself(gaps):
    network = small(gaps=gaps).network
    told = torch.tensor([100.0, 900.0, 400.0, 0.0, 1000.0])

    def read(texts, scalar):
        text = packed(texts)
        queries = (text.tokens == MASK).nonzero()[:, 0]
        return network(text, queries=queries, scalar=scalar)

    def slopes(answers):
        total = sum((a.logits**2).sum() + (a.gaps**2).sum() for a in answers)
        return torch.autograd.grad(total, list(network.parameters()), materialize_grads=True)

    together = read(PACKED, told)
    alone = [read([text], told[i : i + 1]) for i, text in enumerate(PACKED)]
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(together.logits, torch.cat([a.logits for a in alone]), **close)
    torch.testing.assert_close(together.gaps, torch.cat([a.gaps for a in alone]), **close)
    assert together.gaps.shape == (sum(len(text) + 1 for text in PACKED),)
    assert float(together.gaps.detach().min()) > 0
    for ours, theirs in zip(slopes([together]), slopes(alone), strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(scale, 1))


def test_expectations_are_the_means_of_the_counts():
    network = small(gaps="distribution").network
    answer = network(packed(PACKED), queries=torch.tensor([1]), scalar=torch.zeros(5))
    assert answer.counts.shape == (len(answer.gaps), network.config.length + 1)
    mean = answer.counts.softmax(-1) @ torch.arange(network.config.length + 1.0)
    torch.testing.assert_close(answer.gaps, mean)


def test_the_end_marker_is_read():
    network = small().network
    text, ask = packed([(0, MASK)]), {"queries": torch.tensor([1]), "scalar": torch.zeros(1)}
    before = network(text, **ask)
    with torch.no_grad():
        network.embed.weight[END] += 1
    after = network(text, **ask)
    assert float((before.logits - after.logits).detach().abs().max()) > 1e-3
    assert float((before.gaps - after.gaps).detach().abs().min()) > 1e-5
    with pytest.raises(InputError, match="holds the end marker"):
        small().loss(Batch.of(torch.tensor([[0, END]])), Noise.for_batch(0, 1))


def test_at_first_one_token_is_expected_in_every_gap():
    torch.manual_seed(0)
    sizes = TransformerOptions(length=6, width=16, depth=1, heads=2)
    network = MethodOptions(name="flexmdm").build(sizes, VOCAB).network
    answer = network(packed(PACKED), queries=torch.tensor([1]), scalar=torch.zeros(5))
    torch.testing.assert_close(answer.gaps, torch.ones_like(answer.gaps))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, MASK), max_size=5), max_size=4))
def test_ragged_round_trips(rows):
    text = packed(rows)
    width = max(map(len, rows), default=0)
    table = text.padded(END)
    assert table.shape == (len(rows), width)
    back = PackedTokens.of(table, table != END)
    assert torch.equal(back.tokens, text.tokens)
    assert torch.equal(back.lengths, text.lengths)
    assert text.padded(END, width + 2).shape == (len(rows), width + 2)
    assert text.sequence_ids.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert text.position_ids.tolist() == [i for row in rows for i in range(len(row))]
    ended, places, ends = text.with_ends(END)
    assert ended.tokens.tolist() == [v for row in rows for v in [*row, END]]
    assert ended.tokens[places].tolist() == text.tokens.tolist()
    assert ended.tokens[ends].tolist() == [END] * len(rows)


def test_answers_are_over_tokens_alone():
    """A network with logits of all ids: neither the mask nor the end marker has any mass."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=VOCAB + 2, length=4, width=16, depth=1, heads=2, time=True
    )
    model = FlexMDM(FlexibleTransformer(config))
    text, t = packed([(MASK, 0)]), torch.tensor([0.5], dtype=torch.float64)
    log_probs, answer = model.ask(text, t, torch.tensor([0]))
    assert isinstance(answer, Answer)
    assert log_probs.shape == (1, VOCAB)
    torch.testing.assert_close(log_probs.exp().sum(), torch.ones(()))


def test_it_is_flexible_by_name():
    model = small(insertion="half-cosine")
    assert METHODS["flexmdm"] is FlexMDM
    assert (model.family, model.length, model.mask_id, model.end_id) == ("flexible", 6, MASK, END)
    assert model.process == process_of(("half-cosine", "linear"))
    sizes = {"vocab_size": 4, "length": 4, "width": 16, "depth": 1, "heads": 2}
    with pytest.raises(InputError, match="takes no time as an input"):
        FlexibleTransformer(TransformerConfig(**sizes))
    with pytest.raises(InputError, match="unknown name 'sum'"):
        FlexibleTransformer(TransformerConfig(**sizes, time=True), "sum")


CUT_OFF = {
    "schedule": {"schedule": "mdlm:loglinear"},
    "insertion": {"insertion": "md4:linear"},
}


@pytest.mark.parametrize("argument", CUT_OFF)
def test_schedules_that_are_cut_off_are_refused(argument):
    """By the constructor, under its argument's name, and by `build`."""
    network = small().network
    with pytest.raises(InputError, match=f"^{argument}: falls from"):
        FlexMDM(network, **CUT_OFF[argument])
    with pytest.raises(InputError, match=f"^{argument}: falls from"):
        FlexMDM.build(TransformerOptions(width=16, heads=2), VOCAB, **CUT_OFF[argument])
    assert FlexMDM(network, schedule="cosine").process.insertion == make_schedule("cosine")


def test_every_text_is_listed():
    assert len(all_texts(3)) == 15
    assert len(all_texts(2, VOCAB + 1)) == len(ORACLE_STATES)
