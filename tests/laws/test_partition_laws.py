"""Partition generative modelling: both groups are bounds, and sampling follows the same laws.

The expectation over partitions is written out: every division of a short sequence into two groups
with its probability, at every time of a quadrature. The weights are always the library's own.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats

from partita.contracts.batch import Batch
from partita.errors import InputError
from partita.likelihood.bounds import nelbo, scattered
from partita.likelihood.enumeration import exact_log_likelihood
from partita.methods import ComplementaryMDLM
from partita.processes.corruption import (
    Continuous,
    Corrupted,
    Discrete,
    Partition,
    Rate,
    Subset,
    make_corruption,
    unweighted,
)
from partita.processes.masked import marginal, posterior, prior_nats, reconstruction_nats, reverse
from partita.randomness import Noise
from partita.samplers import Prompt, sample
from partita.schedules import Schedule, make_schedule, sampling_grid
from tests.golden.cases import own
from tests.laws.tables import (
    LEVEL,
    MASK,
    VOCAB,
    TableNetwork,
    all_sequences,
    all_states,
    assert_law,
    bayes_logits,
    chain_law,
    chain_step,
    data_law,
    mean_prediction,
    random_logits,
    state_index,
    table_mdlm,
    table_pgm,
)
from tests.support.bounds import (
    EXACT,
    all_masks,
    continuous_bound,
    discrete_bound,
    quadrature,
)
from tests.support.partition_bounds import (
    CORRUPTIONS,
    discrete_groups,
    exact_bound,
    expected_at,
    group_nats,
    half_ends,
    k_form,
)
from tests.support.sampler_laws import law_of_groups, prediction, uniform_mixture

SYMMETRIC = {  # alpha(1 - t) = 1 - alpha(t)
    name: make_schedule(name) for name in ("linear", "log-linear", "cosine-squared")
}
SKEWED = {name: make_schedule(name) for name in EXACT if name not in SYMMETRIC} | {
    "cubic": make_schedule("polynomial", exponent=3.0),
    "slow exponential": make_schedule("exponential", rate=2.0),
    "narrow geometric": make_schedule("geometric", sigma_min=0.1, sigma_max=5.0),
}
SCHEDULES = SYMMETRIC | SKEWED
STEPS = (1, 2, 4, 16)
SAMPLES = 30_000


@dataclass(frozen=True)
class Complement(Schedule):
    """1 - alpha(1 - t): what is visible is hidden instead, and the time runs backwards."""

    base: Schedule

    def _head(self, t):
        return self.base.alpha(1 - t)

    def _tail(self, t):
        return self.base.one_minus_alpha(1 - t)

    def _inverse_head(self, hidden):
        return 1 - self.base.inverse(hidden)

    def _inverse_tail(self, alpha):
        return 1 - self.base.inverse_one_minus(alpha)

    def derivative(self, t):
        return self.base.derivative(1 - t)

    def weight(self, t):
        return -self.derivative(t) / self.one_minus_alpha(t)


# Expectations ------------------------------------------------------------------------------------


def continuous_groups(method, sequences, schedule, weights=None, nodes=240):
    """The law "continuous", integrated over t: each group's bound, [2, sequences]."""
    times, shares = quadrature(nodes)
    weights = Continuous(schedule).weights(times) if weights is None else weights(times)
    return (shares[:, None] * expected_at(method, sequences, schedule, times, weights)).sum(1)


def size_law(count):
    """The law of the number of tokens in group 1. All that follows reads it here.

    A size k of probability P(k) needs the weights 1 / (k P(k)) and 1 / ((n - k) P(k)).
    """
    return half_ends(count)


@functools.cache
def _subset_partitions(pattern):
    valid = torch.tensor(pattern)
    rows, count = 4096, int(valid.sum())
    drawn = Subset().partition(valid.expand(rows, -1), Noise.for_batch(0, rows), 0, rows)
    number = (drawn.groups * 2 ** torch.arange(valid.shape[-1])).sum(-1)
    distinct, which = number.unique(return_inverse=True)
    first = torch.stack([(which == i).nonzero()[0, 0] for i in range(len(distinct))])
    assert torch.equal(drawn.weights, drawn.weights[first][which])  # the groups decide the weights
    assert len(distinct) == 2**count
    size = drawn.groups[first].sum(-1)
    ways = torch.tensor([math.comb(count, k) for k in range(count + 1)])
    return Partition(drawn.groups[first], drawn.weights[first]), (size_law(count) / ways)[size]


def subset_partitions(valid):
    """Every partition of the valid tokens of one row as "subset" weighs it, and its chance."""
    return _subset_partitions(tuple(valid.tolist()))


def subset_groups(method, x):
    """The law "subset", every partition with its chance: the bound of each group, [2]."""
    drawn, chance = subset_partitions(torch.ones_like(x, dtype=torch.bool))
    return (chance * group_nats(method, x.expand(len(chance), -1), drawn)).sum(-1)


def minus_log_p(method, sequences, visible=None):
    values = [-exact_log_likelihood(method, x, visible) for x in sequences]
    return torch.tensor(values, dtype=torch.float64)


# Bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("length", [2, 3])
def test_both_groups_are_the_k_form_bound_for_every_schedule(name, length):
    logits, sequences = random_logits(length), all_sequences(length)
    groups = continuous_groups(table_pgm(logits), sequences, SCHEDULES[name])
    bound = k_form(logits, sequences).expand_as(groups)
    torch.testing.assert_close(groups, bound, rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", EXACT)
def test_group_1_is_what_mdlm_integrates(name):
    """The same quadrature of MDLM's own loss over the same table."""
    logits, x = random_logits(3), torch.tensor([2, 0, 1])
    groups = continuous_groups(table_pgm(logits), x[None], make_schedule(name))
    exact = continuous_bound(table_mdlm(logits, schedule=name), x)
    assert float(groups[0, 0]) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_paper_s_weight_is_the_bound_s_where_the_schedule_is_symmetric(name):
    """w(1 - t) instead of -alpha'/alpha for group 0."""
    logits, sequences, schedule = random_logits(3), all_sequences(3), SCHEDULES[name]
    method = table_pgm(logits)
    ours, paper = (
        continuous_groups(method, sequences, schedule, weights)
        for weights in (None, lambda t: (schedule.weight(t), schedule.weight(1 - t)))
    )
    assert torch.equal(ours[0], paper[0])
    if name in SYMMETRIC:
        torch.testing.assert_close(paper, ours)
        return
    off = paper[1] / ours[1]
    assert float((off - 1).abs().max()) > 0.03
    if name in ("cosine", "exponential", "slow exponential"):
        # Not only group 0 but the whole loss is below what it should bound from above.
        assert bool((paper[1] < minus_log_p(method, sequences)).all())
        assert bool((paper.mean(0) < minus_log_p(method, sequences)).any())


@pytest.mark.parametrize("length", [1, 2, 3])
def test_subset_partitions_give_the_same_bound_in_both_groups(length):
    logits = random_logits(length)
    method = table_pgm(logits)
    for x, bound in zip(
        all_sequences(length), k_form(logits, all_sequences(length)).tolist(), strict=True
    ):
        assert subset_groups(method, x).tolist() == pytest.approx([bound, bound], rel=1e-12)


def test_subset_weights_are_bounded():
    for length in (1, 2, 5):
        drawn, chance = subset_partitions(torch.ones(length, dtype=torch.bool))
        assert float(chance.sum()) == pytest.approx(1)
        size = drawn.groups.sum(-1, keepdim=True)
        own = torch.where(drawn.groups, size, length - size)  # tokens in a token's own group
        torch.testing.assert_close(drawn.weights, 1 / (own * size_law(length)[size]))
        assert float(drawn.weights.max()) <= max(length, 2)
        torch.testing.assert_close(drawn.weights.sum(-1), torch.full_like(chance, 2 * length))


def test_a_single_token_has_no_variance():
    """Whichever group it joins, it is predicted from nothing: the loss is -log p(x) itself."""
    method, x = table_pgm(random_logits(1)), all_sequences(1).repeat(20, 1)
    loss = method.loss(Batch.of(x), Noise.for_batch(0, len(x)))
    exact = minus_log_p(method, all_sequences(1)).repeat(20)
    torch.testing.assert_close(loss.per_sequence.detach(), exact)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_discrete_partitions_are_bounds_of_a_chain_and_of_its_complement(name, steps):
    """Group 1: T steps of the schedule. Group 0: T steps of the visible tokens, read backwards."""
    schedule, logits = SCHEDULES[name], random_logits(3)
    method, sequences = table_pgm(logits), all_sequences(3)[::5]
    bounds = discrete_groups(method, sequences, schedule, steps)
    grid = sampling_grid("uniform", steps)
    chains = (schedule, Complement(schedule))
    shares = (schedule.alpha(grid), schedule.one_minus_alpha(grid.flip(0)))
    for bound, chain, visible in zip(bounds, chains, shares, strict=True):
        mdlm = table_mdlm(logits, schedule=chain)
        exact = [discrete_bound(mdlm, x, steps) for x in sequences]
        assert bound.tolist() == pytest.approx(exact, rel=1e-9)
        torch.testing.assert_close(visible, chain.alpha(grid))
        # One step reveals everything at once, and the bound of one step is the value itself.
        assert bool((bound >= minus_log_p(method, sequences, visible) - 1e-12).all())


@pytest.mark.parametrize("name", SCHEDULES)
def test_discrete_group_0_is_a_sum_of_step_divergences(name):
    """sum_i E_q KL(q(z_s|z_t,x) || p(z_s|z_t)) of the complementary chain, from distributions."""
    steps, chain = 4, Complement(SCHEDULES[name])
    method, x = table_pgm(random_logits(2)), torch.tensor([[1, 2]])
    states, total = all_states(2), 0.0
    truth, mean = x.expand(len(states), -1), mean_prediction(method, states, 0.5)
    for i in range(1, steps + 1):
        t, s = (torch.full((len(states),), v / steps, dtype=torch.float64) for v in (i, i - 1))
        q_t = marginal(truth, t, chain, MASK, VOCAB + 1)
        chance = q_t.gather(-1, states[..., None])[..., 0].prod(-1)
        q = posterior(truth, states, s, t, chain, MASK, VOCAB + 1)
        p = reverse(mean, states, s, t, chain, MASK)
        divergence = torch.special.xlogy(q, q / p).nan_to_num().sum((-1, -2))
        total += float((chance * divergence).sum())
    _, group_0 = discrete_groups(method, x, SCHEDULES[name], steps)
    assert float(group_0[0]) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_above_the_exact_value(length, seed):
    method, sequences = table_pgm(random_logits(length, seed)), all_sequences(length)
    exact = minus_log_p(method, sequences)
    torch.testing.assert_close((-exact).exp().sum(), torch.ones((), dtype=torch.float64))
    subsets = torch.stack([subset_groups(method, x) for x in sequences], 1)
    assert bool((subsets >= exact - 1e-12).all())
    for name in ("cosine", "polynomial", "geometric"):
        integrals = continuous_groups(method, sequences, SCHEDULES[name])
        assert bool((integrals >= exact - 1e-7).all())


@pytest.mark.parametrize("length", [2, 3])
def test_a_bayes_table_reaches_the_entropy_from_above_in_both_groups(length):
    law = data_law(length)
    method, sequences = table_pgm(bayes_logits(length, law)), all_sequences(length)
    entropy = float(-(law * law.log()).sum())
    limit = (law * torch.stack([subset_groups(method, x) for x in sequences], 1)).sum(-1)
    assert float(limit.min()) >= entropy - 1e-12
    for steps in STEPS:
        bounds = (law * discrete_groups(method, sequences, SCHEDULES["cosine"], steps)).sum(-1)
        assert bool((bounds > limit).all())
        limit_gap = bounds - limit
    assert float(limit_gap.max()) < 0.1 * entropy  # T = 16


TRUNCATED = ("mdlm:loglinear", "md4:linear", "mdlm:cosine", "md4:cosine", "md4:poly2")


@pytest.mark.parametrize("name", TRUNCATED)
def test_truncated_schedules_stay_bounds_in_both_groups(name):
    """Continuous time: some tokens are shown by the prior, some are guessed at the end."""
    length, schedule = 2, make_schedule(name)
    method, sequences = table_pgm(random_logits(length), schedule=schedule), all_sequences(length)
    ends = length * method.bound_ends(Continuous(schedule))
    edges = torch.tensor([0.0, 1.0], dtype=torch.float64)
    cut_start, cut_end = float(schedule.one_minus_alpha(edges)[0]), float(schedule.alpha(edges)[1])
    assert ends == pytest.approx(length * (cut_start + cut_end) * math.log(VOCAB))
    groups = continuous_groups(method, sequences, schedule)
    # What the prior shows of one group is what the other one has left to guess.
    for bound, shown, left in zip(groups, (cut_end, cut_start), (cut_start, cut_end), strict=True):
        for value, x in zip(bound.tolist(), sequences.tolist(), strict=True):
            assert value + ends >= -truncated_log_p(method, x, shown, left)


def truncated_log_p(method, x, shown, left):
    """log p(x): each token is shown at first (uniform), or guessed last (uniform), or predicted.

    Those that are predicted come one at a time in random order.
    """
    share = {"first": shown / VOCAB, "last": left / VOCAB, "between": 1 - shown - left}
    total = 0.0
    for when in itertools.product(share, repeat=len(x)):
        start = {i: x[i] for i, place in enumerate(when) if place == "first"}
        between = [i for i, place in enumerate(when) if place == "between"]
        orders = list(itertools.permutations(between))
        for order in orders:
            visible, chance = dict(start), math.prod(share[place] for place in when) / len(orders)
            for i in order:
                chance *= float(prediction(method, visible)[i, x[i]])
                visible[i] = x[i]
            total += chance
    return math.log(total)


@pytest.mark.parametrize("name", TRUNCATED)
@pytest.mark.parametrize("steps", [1, 3])
def test_truncated_chains_stay_bounds_in_both_groups(name, steps):
    length, schedule = 2, make_schedule(name)
    method, sequences = table_pgm(random_logits(length), schedule=schedule), all_sequences(length)
    ends = length * method.bound_ends(Discrete(schedule, steps))
    bounds = discrete_groups(method, sequences, schedule, steps)
    states = all_states(length)
    guess = torch.eye(VOCAB + 1, VOCAB, dtype=torch.float64)
    guess[MASK] = 1 / VOCAB
    for bound, chain in zip(bounds, (schedule, Complement(schedule)), strict=True):
        shown = float(chain.alpha(torch.ones((), dtype=torch.float64)))
        prior = torch.tensor([shown / VOCAB] * VOCAB + [1 - shown], dtype=torch.float64)
        law = prior[states].prod(-1)
        for i in range(steps, 0, -1):
            law = law @ chain_step(method, length, (i - 1) / steps, i / steps, chain)
        for value, x in zip(bound.tolist(), sequences, strict=True):
            assert value + ends >= -math.log(float((law * guess[states, x].prod(-1)).sum())) - 1e-12


# The stored enumerations of MD4's toys ------------------------------------------------------------


class Toy:
    """A stored table that is not told the time, as a partition network's."""

    def __init__(self, name):
        self.case = own(f"md4/{name}")
        base = self.case["logits_table_A"]
        self.states, self.length, self.size = base.shape
        # There position 0 is the most significant digit of a state's number, here the least.
        numbers = torch.arange(self.states)
        digits = (self.size + 1) ** torch.arange(self.length)
        states = numbers[:, None] // digits % (self.size + 1)
        assert torch.equal(state_index(states, self.size), numbers)
        self.method = table_pgm(base[(states * digits.flip(0)).sum(-1)])
        self.x = self.case["x_all"]
        assert self.method.mask_id == self.case.config["mask_id"]


toys = pytest.mark.parametrize("name", ["toy_md4_exact_short", "toy_md4_exact_long"])


@toys
def test_toy_continuous_bounds(name):
    toy = Toy(name)
    for label in toy.case.config["schedules"]:
        schedule = make_schedule(label)
        for bound in continuous_groups(toy.method, toy.x, schedule, nodes=64):
            toy.case.close(bound, f"{label}/timeindep/eps0/nelbo_cont")
            toy.case.close(bound, f"{label}/pgm/corrected_weights")
            toy.case.close(bound, "any_order_expected_nll")
        paper = continuous_groups(
            toy.method,
            toy.x,
            schedule,
            lambda t, schedule=schedule: (schedule.weight(t), schedule.weight(1 - t)),
            nodes=64,
        )
        toy.case.close(paper.mean(0), f"{label}/pgm/official_weights")


@toys
def test_toy_truncated_bounds(name):
    """The reference has the reconstruction term but no prior term."""
    toy = Toy(name)
    for label in toy.case.config["schedules"]:
        schedule = make_schedule(f"md4:{label}")
        groups = continuous_groups(toy.method, toy.x, schedule, nodes=64)
        end = reconstruction_nats(schedule, toy.length, toy.size)
        toy.case.close(groups[0] + end, f"{label}/timeindep/eps1e-4/nelbo_cont")
        # Both ends are cut alike and all of it is time-free: the complement has the same integral
        # in alpha, from eps to 1 - eps, whatever the schedule in between.
        toy.case.close(groups[1] + end, f"{label}/timeindep/eps1e-4/nelbo_cont")


@toys
def test_toy_discrete_bounds(name):
    toy = Toy(name)
    case = toy.case
    for label, steps in itertools.product(case.config["schedules"], case.config["T_values"]):
        schedule, key = make_schedule(label), f"{label}/timeindep/eps0/T{steps}"
        groups = discrete_groups(toy.method, toy.x, schedule, steps)
        case.close(groups[0], f"{key}/nelbo")
        if label == "linear":  # its own complement
            case.close(groups[1], f"{key}/nelbo")
        if f"{key}/nelbo_per_step" in case.tensors:
            times = torch.arange(steps + 1, dtype=torch.float64)
            weights = Discrete(schedule, steps).partition_weights(times)
            expected = expected_at(toy.method, toy.x, schedule, times / steps, weights)
            terms = half_ends(steps)[:, None] * expected
            case.close(terms[0, 1:], f"{key}/nelbo_per_step")
            if label == "linear":
                case.close(terms[1, :-1].flip(0), f"{key}/nelbo_per_step")


@toys
def test_toy_subset_bound_and_likelihoods(name):
    toy = Toy(name)
    case = toy.case
    for bound in torch.stack([subset_groups(toy.method, x) for x in toy.x], 1):
        case.close(bound, "closed_form_nelbo")
    case.close(minus_log_p(toy.method, toy.x), "any_order_neg_log_p")
    for label, steps in itertools.product(case.config["schedules"], case.config["T_values"]):
        schedule, key = make_schedule(label), f"{label}/timeindep/eps0/T{steps}"
        visible = schedule.alpha(sampling_grid("uniform", steps))
        if steps <= 8:  # the work of the enumeration grows with the steps
            case.close(minus_log_p(toy.method, toy.x, visible), f"{key}/neg_log_p")
        if f"{key}/law_cosine_grid" in case.tensors:
            visible = schedule.alpha(sampling_grid("cosine", steps))
            exact = minus_log_p(toy.method, toy.x, visible)
            case.close((-exact).exp(), f"{key}/law_cosine_grid")


# What the laws draw ------------------------------------------------------------------------------

PADDED = torch.tensor(
    [
        [True, True, True, True, True],
        [True, True, True, False, False],
        [False, True, False, True, True],
        [False, False, True, True, False],
        [False, False, False, False, True],
    ]
)


def chi_square(counts, law):
    """Counts against a law, at `LEVEL`."""
    p_value = stats.chisquare(counts.numpy(), (law * counts.sum()).numpy()).pvalue
    assert p_value > LEVEL, f"p = {p_value:.2e}"


def test_a_row_s_size_of_group_1_follows_its_law():
    """Over independent steps; the rows of one step share their shift."""
    steps, tokens = 700, PADDED.sum(-1)
    noise = Noise.for_batch(5, len(PADDED))
    drawn = [Subset().partition(PADDED, noise, step, len(PADDED)) for step in range(steps)]
    sizes = torch.stack([partition.groups.sum(-1) for partition in drawn])
    for row, count in enumerate(tokens.tolist()):
        chi_square(torch.bincount(sizes[:, row], minlength=count + 1), size_law(count))
        assert int(sizes[:, row].max()) == count


@pytest.mark.parametrize("pattern", range(len(PADDED)))
def test_subsets_of_each_size_are_uniform(pattern):
    """Given its size, each row's subset has noise of its own."""
    rows, valid = 24_000, PADDED[pattern]
    drawn = Subset().partition(valid.expand(rows, -1), Noise.for_batch(6, rows), 0, rows)
    assert not bool((drawn.groups & ~valid).any())
    assert not bool(drawn.weights[:, ~valid].any())
    count = int(valid.sum())
    number = (drawn.groups[:, valid] * 2 ** torch.arange(count)).sum(-1)
    every = torch.bincount(number, minlength=2**count)
    size = all_masks(count).flip(-1).sum(-1)  # of subset number i
    for k in range(count + 1):
        assert abs(int(every[size == k].sum()) - rows * float(size_law(count)[k])) <= 1
        if 0 < k < count:
            ways = math.comb(count, k)
            chi_square(every[size == k], torch.full((ways,), 1 / ways, dtype=torch.float64))


@pytest.mark.parametrize("rows", [4, 10, 64, 101])
def test_the_rows_of_a_batch_are_spread_evenly(rows):
    length = 3
    valid, noise = torch.ones(rows, length, dtype=torch.bool), Noise.for_batch(1, rows)
    for step in range(8):
        drawn = Subset().partition(valid, noise, step, rows)
        counts = torch.bincount(drawn.groups.sum(-1), minlength=length + 1)
        planned = rows * size_law(length)
        assert bool((counts >= torch.floor(planned)).all())
        assert bool((counts <= torch.ceil(planned)).all())
        # Processes that hold a part of the batch each draw their part of the same partition.
        for half in torch.arange(rows).chunk(2):
            part = Subset().partition(valid[half], noise.select(half), step, rows)
            assert torch.equal(part.groups, drawn.groups[half])
            assert torch.equal(part.weights, drawn.weights[half])


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_discrete_partitions_are_spread_evenly_over_the_grid(steps):
    """The weight of a row tells its place i on the grid of T + 1."""
    rows, schedule = 16 * steps, make_schedule("cosine")
    valid = torch.ones(rows, 40, dtype=torch.bool)
    drawn = Discrete(schedule, steps).partition(valid, Noise.for_batch(2, rows), 0, rows)
    table = torch.stack(
        Discrete(schedule, steps).partition_weights(torch.arange(steps + 1).double()), -1
    )
    seen = torch.zeros(steps + 1, dtype=torch.long)
    for groups, weights in zip(drawn.groups, drawn.weights, strict=True):
        fits = [
            bool((weights == torch.where(groups, hidden, visible)).all())
            for hidden, visible in table
        ]
        assert sum(fits) == 1
        seen[fits.index(True)] += 1
    assert seen.tolist() == [8] + [16] * (steps - 1) + [8]
    assert bool(torch.isfinite(drawn.weights).all())


def test_unweighted_partitions_have_weight_one_in_both_groups():
    valid = PADDED.repeat(200, 1)
    for law in (unweighted(make_schedule("cosine")), Rate(make_schedule("cosine"))):
        drawn = law.partition(valid, Noise.for_batch(3, len(valid)), 0, len(valid))
        assert torch.equal(drawn.weights, valid.double())
        assert bool(drawn.groups.any())
        assert not bool(drawn.groups[valid].all())
        assert not bool((drawn.groups & ~valid).any())


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_clipped_weights_are_those_of_subsets_up_to_a_number(most):
    valid = PADDED.repeat(50, 1)
    noise, given = Noise.for_batch(4, len(valid)), (0, len(valid))
    law = make_corruption("clipped", make_schedule("linear"), most=most)
    ours, theirs = law.draw(valid, noise, *given), Subset().draw(valid, noise, *given)
    assert torch.equal(ours.masked, theirs.masked)
    assert torch.equal(ours.weights, theirs.weights.clamp(max=most))
    parted, plain = law.partition(valid, noise, *given), Subset().partition(valid, noise, *given)
    assert torch.equal(parted.groups, plain.groups)
    assert torch.equal(parted.weights, plain.weights.clamp(max=most))
    assert bool((plain.weights > 3).any())
    assert not law.bound


def test_clipped_training_is_measured_by_the_bound():
    method = table_pgm(random_logits(3), corruption="clipped", most=2)
    assert method.bound_corruption.bound
    with pytest.raises(InputError, match="most"):
        make_corruption("clipped", make_schedule("linear"), most=0)


@pytest.mark.parametrize("law", CORRUPTIONS)
@pytest.mark.parametrize("groups", [1, 2])
def test_drawn_losses_average_to_the_enumerated_bound(law, groups):
    logits, x, rows, replicates = random_logits(3), torch.tensor([2, 0, 1]), 48, 250
    method, noise = table_pgm(logits, schedule="cosine"), Noise.for_batch(4, rows)
    tokens = x.expand(rows, -1)
    with torch.no_grad():
        means = torch.stack(
            [
                method.loss(
                    Batch.of(tokens), noise, step, groups=groups, corruption=CORRUPTIONS[law]
                ).per_sequence.mean()
                for step in range(replicates)
            ]
        )
    error = float(means.std()) / replicates**0.5
    assert abs(float(means.mean()) - exact_bound(law, logits, x, groups)) < 4 * error
    assert error < 0.03 * float(means.mean())  # the comparison above says something


@pytest.mark.parametrize("name", ["mdlm:loglinear", "md4:linear"])
def test_nelbo_adds_the_end_terms_once(name):
    method, x = table_pgm(random_logits(3), schedule=name), all_sequences(3)
    law, noise = Continuous(method.schedule), Noise(0, scattered(len(x)))
    with torch.no_grad():
        drawn = [
            float(method.loss(Batch.of(x), noise, step, corruption=law).objective)
            for step in range(4)
        ]
    ends = prior_nats(method.schedule, 1, VOCAB) + reconstruction_nats(method.schedule, 1, VOCAB)
    estimate = nelbo(method, x, corruption=law, replicates=4)
    assert ends > 0
    assert estimate.nats == pytest.approx(sum(drawn) / 4 + ends, rel=1e-12)


# Variance ----------------------------------------------------------------------------------------


def subset_variances(method, x):
    """Exact variances of one drawn loss: [both groups, group 1 alone] x [all, with k given].

    The second column is what is left when the rows of a batch are spread evenly over k.
    """
    drawn, chance = subset_partitions(torch.ones_like(x, dtype=torch.bool))
    both = method.loss_of_groups(Batch.of(x.expand(len(chance), -1)), drawn).per_sequence.detach()
    masks = all_masks(len(x))[1:]
    size = masks.sum(-1)
    weights = (len(x) / size.double())[:, None].expand(masks.shape)
    one = method.loss_given(
        Batch.of(x.expand(len(masks), -1), is_token=torch.ones_like(masks)),
        Corrupted(masks, weights, None),
    ).per_sequence.detach()
    shares = 1 / (len(x) * size.bincount()[size].double())
    return torch.tensor(
        [
            [_variance(both, chance), _within(both, chance, drawn.groups.sum(-1))],
            [_variance(one, shares), _within(one, shares, size)],
        ],
        dtype=torch.float64,
    )


def _variance(values, chance):
    mean = (chance * values).sum() / chance.sum()
    return float((chance * (values - mean) ** 2).sum())


def _within(values, chance, size):
    return sum(_variance(values[size == k], chance[size == k]) for k in size.unique().tolist())


def variances(logits, law):
    """Their mean over the data."""
    method, sequences = table_pgm(logits), all_sequences(logits.shape[1])
    return torch.einsum(
        "x,xgk->gk", law, torch.stack([subset_variances(method, x) for x in sequences])
    )


TABLES = {
    "random": random_logits,
    "bayes": lambda length, seed: bayes_logits(length, data_law(length, seed)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize("table", TABLES)
def test_both_groups_vary_less_than_one(table, length, seed):
    """One pass of the network each: a single draw, and with the sizes spread evenly."""
    (both, both_spread), (one, one_spread) = variances(
        TABLES[table](length, seed), data_law(length, seed)
    ).tolist()
    assert both < 0.8 * one
    assert both_spread <= 0.8 * one_spread + 1e-12  # at length 2 a given size leaves none of it


def test_equal_costs_leave_no_variance():
    """Where every token costs c, the loss says L c whatever is drawn: the weights sum to 2 L."""
    for length in (1, 2, 3, 5):
        table = torch.zeros((VOCAB + 1) ** length, length, VOCAB, dtype=torch.float64)
        spread = subset_variances(table_pgm(table), torch.zeros(length, dtype=torch.long))
        torch.testing.assert_close(spread, torch.zeros_like(spread), atol=1e-12, rtol=0)


# Complementary masking ---------------------------------------------------------------------------


def complementary(logits):
    return ComplementaryMDLM(TableNetwork(logits, with_mask=True), mask_id=MASK)


@pytest.mark.parametrize("padded", [False, True])
def test_complementary_masking_has_the_same_loss(padded):
    logits, x = random_logits(3), all_sequences(3).repeat(4, 1)
    generator = torch.Generator().manual_seed(0)
    valid = torch.rand(x.shape, generator=generator) < 0.7 if padded else None
    real = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
    pgm, masked = table_pgm(logits), complementary(logits)
    for law in CORRUPTIONS.values():
        drawn = law.partition(real, Noise.for_batch(1, len(x)), 0, len(x))
        shown = torch.where(real, x, MASK)  # a network with masks sees them in place of padding
        ours, theirs = (
            pgm.loss_of_groups(Batch.of(x, is_token=valid), drawn),
            masked.loss_of_groups(Batch.of(shown, is_token=valid), drawn),
        )
        assert torch.equal(ours.counted, theirs.counted)
        assert torch.equal(ours.counted, real)
        for name in ("objective", "per_token", "cross_entropy"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
        for groups in (1, 2):
            noise = Noise.for_batch(2, len(x))
            ours, theirs = (
                method.loss(Batch.of(x, is_token=valid), noise, 5, groups=groups, corruption=law)
                for method in (pgm, masked)
            )
            torch.testing.assert_close(ours.per_token, theirs.per_token)
            assert torch.equal(ours.counted, theirs.counted)


def test_complementary_masking_has_the_same_gradient():
    logits, x = random_logits(3), all_sequences(3)
    gradients = []
    for method in (table_pgm(logits), complementary(logits)):
        method.loss(Batch.of(x), Noise.for_batch(3, len(x))).objective.backward()
        gradients.append(method.network.table.grad[..., :VOCAB])
    torch.testing.assert_close(*gradients)


def test_padding_changes_nothing_for_others():
    """Neither what stands there nor the group it is in."""
    method, x = table_pgm(random_logits(3)), all_sequences(3)
    generator = torch.Generator().manual_seed(1)
    valid = torch.rand(x.shape, generator=generator) < 0.6
    drawn = Subset().partition(valid, Noise.for_batch(0, len(x)), 0, len(x))
    loss = method.loss_of_groups(Batch.of(x, is_token=valid), drawn)
    other = torch.where(valid, x, (x + 1) % VOCAB)
    swapped = Partition(drawn.groups | ~valid, drawn.weights)
    again = method.loss_of_groups(Batch.of(other, is_token=valid), swapped)
    assert torch.equal(loss.per_token, again.per_token)
    assert torch.equal(loss.counted, valid)
    assert torch.equal(again.counted, valid)
    noise = Noise.for_batch(4, len(x))
    for groups in (1, 2):
        ours, same = (
            method.loss(Batch.of(t, is_token=valid), noise, groups=groups).per_token
            for t in (x, other)
        )
        assert torch.equal(ours, same)


@pytest.mark.parametrize("pattern", [[0, 1], [0, 2], [1]])
def test_padded_rows_have_the_bound_of_their_own_tokens(pattern):
    """The k-form over the valid tokens, where padding is never visible."""
    logits, x = random_logits(3), torch.tensor([2, 0, 1])
    valid = torch.zeros(3, dtype=torch.bool)
    valid[pattern] = True
    drawn, chance = subset_partitions(valid)
    rows = len(chance)
    groups = group_nats(table_pgm(logits), x.expand(rows, -1), drawn, valid.expand(rows, -1))
    masks, count = all_masks(3), len(pattern)
    masks = masks[~(masks & ~valid).any(-1) & masks.any(-1)]
    size = masks.sum(-1)
    weights = (count / size.double())[:, None].expand(masks.shape)
    padded = torch.where(valid, x, MASK).expand(len(masks), -1)
    loss = table_mdlm(logits).loss_given(
        Batch.of(padded, is_token=valid.expand_as(masks)), Corrupted(masks, weights, None)
    )
    ways = size.bincount()[size].double()
    bound = float((loss.per_sequence.detach() / ways / count).sum())
    assert (chance * groups).sum(-1).tolist() == pytest.approx([bound, bound], rel=1e-12)


# Samplers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "grid"),
    [("linear", "uniform"), ("cosine", "uniform"), ("linear", "cosine"), ("geometric", "uniform")],
)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_ancestral(schedule, grid, steps):
    logits = random_logits(3)
    law = chain_law(table_mdlm(logits), 3, sampling_grid(grid, steps), make_schedule(schedule))
    options = {"schedule": schedule, "grid": grid, "steps": steps}
    drawn = sample(table_pgm(logits), SAMPLES, sampler="ancestral", seed=20 + steps, **options)
    assert_law(drawn, law)


def test_first_hitting():
    model = table_pgm(random_logits(3))
    law = (-minus_log_p(model, all_sequences(3))).exp()
    assert_law(sample(model, SAMPLES, sampler="first-hitting", seed=21), law)


@pytest.mark.parametrize(("steps", "sizes"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1])])
def test_ordered_at_random(steps, sizes):
    """PGM's own sampler: a random order, a fixed number of tokens per step."""
    logits = random_logits(3)
    law = uniform_mixture(table_mdlm(logits), itertools.permutations(range(3)), sizes)
    assert_law(sample(table_pgm(logits), SAMPLES, sampler="ordered", steps=steps, seed=22), law)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("steps", "sizes"), [(2, [2, 1]), (3, [1, 1, 1])])
def test_ordered_as_told(order, steps, sizes):
    logits = random_logits(3)
    law = uniform_mixture(table_mdlm(logits), [order], sizes)
    options = {"order": list(order), "steps": steps}
    assert_law(sample(table_pgm(logits), SAMPLES, sampler="ordered", seed=23, **options), law)


def test_confidence_at_random_is_a_random_order():
    logits = random_logits(3)
    law = uniform_mixture(table_mdlm(logits), itertools.permutations(range(3)), [2, 1])
    options = {"confidence": "random", "counts": "linear", "steps": 2}
    drawn = sample(table_pgm(logits), SAMPLES, sampler="confidence", seed=24, **options)
    assert_law(drawn, law)


def plans(sampler, hidden, steps):
    """The groups of positions that a sampler reveals together, and the chance of each plan."""
    count = len(hidden)
    if sampler == "ancestral":  # under the linear schedule: each its own step, all alike
        for chosen in itertools.product(range(steps), repeat=count):
            groups = [
                [p for p, s in zip(hidden, chosen, strict=True) if s == i] for i in range(steps)
            ]
            yield 1 / steps**count, [group for group in groups if group]
        return
    sizes = [1] * count
    if sampler != "first-hitting":
        sizes = [count // steps + (i < count % steps) for i in range(steps)]
    for order in itertools.permutations(hidden):
        ends = list(itertools.accumulate(sizes, initial=0))
        groups = [list(order[a:b]) for a, b in itertools.pairwise(ends)]
        yield 1 / math.factorial(count), [group for group in groups if group]


STARTS = [{}, {0: 2}, {1: 0}, {2: 1}, {0: 1, 2: 2}, {0: 0, 1: 1}, {0: 2, 1: 0, 2: 1}]


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("ancestral", {"steps": 1}),
        ("ancestral", {"steps": 3}),
        ("first-hitting", {}),
        ("ordered", {"steps": 1}),
        ("ordered", {"steps": 2}),
        ("confidence", {"steps": 2, "confidence": "random", "counts": "linear"}),
    ],
)
def test_rows_with_different_prompts_follow_their_own_laws(sampler, options):
    """Known tokens at any positions, and rows with more or fewer of them in one batch."""
    logits, rows = random_logits(3), 8000 * len(STARTS)
    model = table_pgm(logits, schedule="linear")
    tokens, known = torch.zeros(rows, 3, dtype=torch.long), torch.zeros(rows, 3, dtype=torch.bool)
    which = torch.arange(rows) % len(STARTS)
    for number, start in enumerate(STARTS):
        for position, token in start.items():
            tokens[which == number, position] = token
            known[which == number, position] = True
    drawn = sample(model, prompt=Prompt(tokens, known), sampler=sampler, seed=25, **options)
    assert torch.equal(drawn[known], tokens[known])
    for number, start in enumerate(STARTS[:-1]):  # the last one leaves nothing to draw
        hidden = [i for i in range(3) if i not in start]
        law = sum(
            chance * law_of_groups(table_mdlm(logits), groups, start)
            for chance, groups in plans(sampler, hidden, options.get("steps", 1))
        )
        assert_law(drawn[which == number], law)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("ancestral", {"steps": 1}),
        ("ancestral", {"steps": 4, "schedule": "cosine"}),
        ("ancestral", {"steps": 3, "grid": "cosine", "temperature": 0.7}),
        ("first-hitting", {}),
        ("first-hitting", {"top_k": 2}),
        ("ordered", {"steps": 2}),
        ("ordered", {"order": [2, 0, 1]}),
        ("ordered", {"order": "left-to-right", "top_p": 0.8}),
        ("confidence", {"steps": 2}),
        ("confidence", {"steps": 3, "noise_temperature": 1.0, "confidence": "margin"}),
        ("confidence", {"steps": 3, "confidence": "random"}),
        ("threshold", {"threshold": 0.5}),
        ("blocks", {"block_length": 2, "inner": "first-hitting"}),
    ],
)
def test_samples_are_those_of_mdlm_with_the_same_table(sampler, options):
    """The same conditionals and the same noise: the same tokens, not only the same law."""
    logits, rows = random_logits(3), 500
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB, (rows, 3), generator=generator)
    prompt = Prompt(tokens, torch.rand(rows, 3, generator=generator) < 0.4)
    for start in ({"count": rows}, {"prompt": prompt}):
        ours, theirs = (
            sample(model, sampler=sampler, seed=26, **start, **options)
            for model in (table_pgm(logits), table_mdlm(logits))
        )
        assert torch.equal(ours, theirs)
        assert len(ours.unique(dim=0)) > 5
