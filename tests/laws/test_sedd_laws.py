"""SEDD by enumeration: a loss that is a rate of divergence, a bound, samplers as their rules.

Oracles are matrices over all sequences of 3 tokens (and a mask) at 2 positions, made by matrix
exponentials; the closed forms of the library stand on the other side.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
import torch
from scipy import stats
from torch import nn

from partita.contracts.batch import Batch
from partita.errors import InputError
from partita.methods import MD4, METHODS
from partita.methods.sedd import SEDD, UniformSEDD
from partita.networks import CausalTransformer, TransformerConfig
from partita.networks.base import Network
from partita.networks.options import TransformerOptions
from partita.processes.chains import (
    campbell_constant,
    campbell_rate,
    mean_from_score,
    over_sequences,
    rate_divergence,
    score_from_mean,
    true_reverse,
)
from partita.processes.corruption import Continuous, Corrupted
from partita.processes.ctmc import Rates, noise_rate, total_noise
from partita.processes.draws import Noised
from partita.processes.graphs import Absorbing, Uniform
from partita.processes.masked import reconstruction_nats
from partita.randomness import Noise
from partita.samplers import Prompt, sample
from partita.samplers import score as score_samplers
from partita.schedules import make_schedule, sampling_grid
from partita.studies.consistency import consistency_table, plot_consistency, score_consistency
from tests.laws.tables import (
    LEVEL,
    MASK,
    VOCAB,
    TableNetwork,
    all_sequences,
    assert_law,
    bayes_logits,
    chain_law,
    data_law,
    random_logits,
    table_md4,
)
from tests.support.score_laws import (
    CHAINS,
    LENGTH,
    OWN,
    Scores,
    all_scores,
    both_graphs,
    both_samplers,
    bound_of,
    data_at_zero,
    drawn_noise,
    expected_loss,
    model_of,
    noised_law,
    point,
    quadrature,
    rule_law,
    states_of,
)

SAMPLES = 30_000
SCHEDULES = ["mdlm:loglinear", "mdlm:geometric"]
chains = pytest.mark.parametrize("chain", CHAINS)
# Models ------------------------------------------------------------------------------------------


class ExactScores(Scores):
    """log p_t(y) / p_t(x) of a data law, by the matrix exponential."""

    def __init__(self, graph, law):
        super().__init__(graph)
        self.graph, self.start = graph, data_at_zero(graph, law)

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        levels, which = scalar.unique(return_inverse=True)
        flows = [noised_law(self.graph, self.start, sigma) for sigma in levels]
        law = torch.stack(flows)[which][queries.rows]
        x = tokens[queries.rows]
        choices = torch.arange(self.graph.tokens)
        moved = x[:, None].repeat(1, len(choices), 1)
        moved.scatter_(
            2,
            queries.positions[:, None, None].expand(-1, len(choices), 1),
            choices[None, :, None].expand(len(x), -1, 1),
        )
        score = law.gather(-1, self.number(moved.flatten(0, 1)).view(len(x), -1))
        score = score.log() - law.gather(-1, self.number(x)[:, None]).log()
        return score + self.graph.log_scale(scalar.double())[queries.rows, None]


def exact_model(chain, schedule="mdlm:loglinear", seed=1):
    graph = CHAINS[chain]
    law = data_law(LENGTH, seed)
    return SEDD(ExactScores(graph, law), graph=graph, schedule=schedule), law


def model_rates(model, time):
    """The model's reverse chain over sequences: from x to y at the rate Q(x, y) s(x)_y."""
    states, q, scores = states_of(model.graph), model.graph.matrix(), all_scores(model, time)
    size = model.graph.states
    rates = torch.zeros(len(states), len(states), dtype=torch.float64)
    for start, x in enumerate(states.tolist()):
        for position, y in itertools.product(range(LENGTH), range(size)):
            if y != x[position]:
                end = start + (y - x[position]) * size ** (LENGTH - 1 - position)
                rates[end, start] = q[x[position], y] * scores[start, position, y]
    return rates - torch.diag(rates.sum(0))


# Chains ------------------------------------------------------------------------------------------


@both_graphs
def test_closed_forms_are_those_of_the_matrix(chain):
    graph = CHAINS[chain]
    own = Rates(graph.matrix(), graph.tokens)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(graph.states, (400,), generator=generator)
    x0 = torch.randint(graph.tokens, (400,), generator=generator)
    sigma = 3 * torch.rand(400, generator=generator, dtype=torch.float64)
    vector = torch.randn(400, graph.states, generator=generator, dtype=torch.float64)
    log_score = vector.scatter(-1, x[:, None], 0.0)
    close = torch.testing.assert_close
    close(graph.flow(vector, sigma), own.flow(vector, sigma))
    close(graph.flow(graph.flow(vector, sigma), -sigma), vector)
    close(graph.row(x, sigma), own.row(x, sigma))
    close(graph.rate_row(x), own.rate_row(x))
    close(graph.stationary(), own.stationary())
    possible = (x == x0) | graph.moving(x)
    few = (log_score[possible], x[possible], x0[possible], sigma[possible])
    close(graph.score_entropy(*few), own.score_entropy(*few))
    assert float(graph.score_entropy(*few).min()) >= 0


def test_score_entropy_vanishes_at_the_ratio_alone():
    graph = CHAINS["uniform"]
    x, x0 = torch.tensor([0, 1]), torch.tensor([0, 2])
    sigma = torch.tensor([0.4, 0.01], dtype=torch.float64)
    law = graph.flow(torch.eye(VOCAB, dtype=torch.float64)[x0], sigma)
    ratio = (law / law.gather(-1, x[:, None])).log()
    at_truth = graph.score_entropy(ratio, x, x0, sigma)
    torch.testing.assert_close(at_truth, torch.zeros_like(at_truth), atol=1e-9, rtol=0)
    moved = ratio.clone()
    moved[:, 1] += torch.tensor([0.1, 0.0], dtype=torch.float64)
    moved[:, 2] -= torch.tensor([0.0, 0.1], dtype=torch.float64)
    assert float(graph.score_entropy(moved, x, x0, sigma).min()) > 1e-4


@pytest.mark.parametrize("size", [3, 50_000])
@both_graphs
def test_single_precision_keeps_the_digits_at_small_noise(chain, size):
    """Scores near the truth at t near 0, where ratios are huge."""
    graph = (Absorbing if chain == "absorbing" else Uniform)(size)
    sigma = torch.tensor([1e-5, 1e-3, 1.0], dtype=torch.float64)
    x0 = torch.zeros(3, dtype=torch.int64)
    x = x0 + 1 if graph.mask_id is None else torch.full_like(x0, graph.mask_id)
    generator = torch.Generator().manual_seed(1)
    free = torch.randn(3, graph.tokens, generator=generator, dtype=torch.float64)
    log_score = free - graph.log_scale(sigma)[:, None]
    if graph.mask_id is None:
        log_score = log_score.scatter(-1, x[:, None], 0.0)
    exact = graph.score_entropy(log_score, x, x0, sigma)
    single = graph.score_entropy(log_score.float(), x, x0, sigma)
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=0)


@chains
def test_noise_is_drawn_from_the_transition(chain):
    graph, rows = CHAINS[chain], 20_000
    x0 = torch.tensor([[0, 2, 1]]).expand(rows, -1)
    valid = torch.tensor([[True, True, False]]).expand(rows, -1)
    sigma = torch.tensor([0.8], dtype=torch.float64)
    drawn = graph.noised(x0, sigma.expand(rows), valid, Noise.for_batch(5, rows), 0)
    assert torch.equal(drawn[:, 2], x0[:, 2])
    for position in (0, 1):
        start = torch.eye(graph.states, dtype=torch.float64)[x0[:1, position]]
        law = Rates(graph.matrix()).flow(start, sigma)[0]
        counts = drawn[:, position].bincount(minlength=graph.states)
        assert not counts[law == 0].any()
        some = law > 1e-12
        assert stats.chisquare(counts[some], (law * rows)[some]).pvalue > LEVEL


def test_own_rates_are_checked():
    with pytest.raises(InputError, match="column"):
        Rates(torch.eye(3))
    with pytest.raises(InputError, match="negative"):
        Rates(-OWN)
    with pytest.raises(InputError, match="square"):
        Rates(OWN[:2])


# The loss ----------------------------------------------------------------------------------------


@chains
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_expected_loss_is_the_rate_of_divergence(chain, schedule):
    model = model_of(chain, schedule)
    forward = over_sequences(model.graph.matrix(), LENGTH)
    for time, x0 in itertools.product((0.02, 0.3, 0.9, 1.0), all_sequences(LENGTH)[::4]):
        t = torch.tensor(time, dtype=torch.float64)
        law = noised_law(model.graph, point(model.graph, x0), total_noise(model.schedule, t))
        rate = rate_divergence(true_reverse(forward, law), model_rates(model, time), law)
        expected = float(noise_rate(model.schedule, t) * rate)
        assert expected_loss(model, x0, time) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_masks_that_all_come_back_have_the_reverse_rates_of_the_chain(schedule):
    """The same under the process that ends in all masks, with that process's own forward rates."""
    model = model_of("absorbing", schedule)
    q = over_sequences(model.graph.matrix(), LENGTH)
    for time, x0 in itertools.product((0.02, 0.3, 0.9, 0.999), all_sequences(LENGTH)[::4]):
        t = torch.tensor(time, dtype=torch.float64, requires_grad=True)
        one = torch.ones_like(t)
        sigma = model.graph.noise_to_prior(
            total_noise(model.schedule, t), total_noise(model.schedule, one)
        )
        rate = float(torch.autograd.grad(sigma, t)[0])
        assert float(sigma.detach()) == pytest.approx(float(drawn_noise(model, time)), rel=1e-9)
        law = noised_law(model.graph, point(model.graph, x0), sigma.detach())
        ours = float(noise_rate(model.schedule, t.detach())) * model_rates(model, time)
        expected = float(rate_divergence(true_reverse(rate * q, law), ours, law))
        assert expected_loss(model, x0, time, sigma.detach()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_states_at_the_last_time_are_what_samples_start_from(schedule):
    model, tokens = model_of("absorbing", schedule), all_sequences(LENGTH)
    one = torch.ones((), dtype=torch.float64)
    last = total_noise(model.schedule, one).expand(1000)
    sigma = model.graph.noise_to_prior(last, last)
    valid = torch.ones(1000, LENGTH, dtype=torch.bool)
    drawn = model.graph.noised(
        tokens[:1].expand(1000, -1), sigma, valid, Noise.for_batch(0, 1000), 0
    )
    assert bool((drawn == MASK).all())
    assert float(model.schedule.alpha(one)) > 0


@both_graphs
def test_drawn_losses_average_to_the_integral(chain):
    model, x0, rows, replicates = model_of(chain), torch.tensor([2, 0]), 256, 200
    exact = bound_of(model, x0)
    tokens = x0.expand(rows, -1)
    means = torch.stack(
        [
            model.loss(Batch.of(tokens), Noise.for_batch(7, rows), step)
            .per_sequence.double()
            .mean()
            for step in range(replicates)
        ]
    ).detach()
    score = (float(means.mean()) - exact) / (float(means.std()) / math.sqrt(replicates))
    assert abs(score) < 4


def reverse_law(model, pieces=600):
    """The law of the model's own reverse process at t = 0, from what its samplers start from."""
    graph, states = model.graph, states_of(model.graph)
    law = graph.stationary()[states].prod(-1)
    # Equal steps of log alpha near t = 1 and of t elsewhere: dsigma is steep there.
    ends = torch.cat(
        [
            1 - torch.logspace(-4, -0.3, pieces // 2).double(),
            torch.linspace(0.49, 0, pieces // 2).double(),
        ]
    )
    grid = [1.0, *ends.tolist()]
    for t, s in itertools.pairwise(grid):
        middle = (t + s) / 2
        size = float(total_noise(model.schedule, torch.tensor(t).double()))
        size -= float(total_noise(model.schedule, torch.tensor(s).double()))
        law = torch.linalg.matrix_exp(size * model_rates(model, middle)) @ law
    return law


@both_graphs
def test_bounds_are_above_the_exact_value(chain):
    """sigma(0) = 0, so nothing has to be reconstructed; masks that are left are lost mass."""
    model = model_of(chain, seed=3)
    law = reverse_law(model, 300)
    total = 0.0
    for x0 in all_sequences(LENGTH):
        probability = float(law[point(model.graph, x0).argmax()])
        total += probability
        assert bound_of(model, x0, 6) > -math.log(probability) - 1e-4
    assert total < 1 + 1e-9
    if chain == "uniform":
        assert total == pytest.approx(1)


@both_graphs
def test_the_bound_is_tight_for_exact_scores(chain):
    """Its mean over the data is the entropy and the divergence of p_1 from the samplers' prior.

    There is no divergence from masks.
    """
    model, law = exact_model(chain)
    mean = sum(
        float(p) * bound_of(model, x0) for p, x0 in zip(law, all_sequences(LENGTH), strict=True)
    )
    graph, entropy, divergence = model.graph, float(-(law * law.log()).sum()), 0.0
    if chain == "uniform":
        prior = graph.stationary()[states_of(graph)].prod(-1)
        end = noised_law(graph, data_at_zero(graph, law), drawn_noise(model, 1.0))
        divergence = float((end * (end / prior).log()).sum())
        assert divergence > 1e-9
    assert mean == pytest.approx(entropy + divergence, abs=1e-6)


def test_end_terms():
    close = torch.testing.assert_close
    x0 = torch.tensor([[2, 0]])
    for name in SCHEDULES:
        schedule = make_schedule(name)
        ends = float(SEDD(Scores(CHAINS["absorbing"]), schedule=name).end_nats(x0).sum())
        all_hidden = float(schedule.one_minus_alpha(torch.ones((), dtype=torch.float64)))
        assert ends == pytest.approx(reconstruction_nats(schedule, 2, VOCAB) / all_hidden)
        uniform = UniformSEDD(Scores(CHAINS["uniform"]), schedule=name)
        own = SEDD(Scores(CHAINS["uniform"]), schedule=name, graph=Rates(uniform.graph.matrix()))
        close(uniform.end_nats(x0), own.end_nats(x0))
        assert float(uniform.end_nats(x0).min()) > 0


# MD4 ---------------------------------------------------------------------------------------------


class MeanScores(nn.Module, Network):
    """MD4's prediction as SEDD's output: log mu + log V."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, tokens, *, queries, scalar=None, label=None):
        logits = self.inner(tokens, queries=queries, scalar=scalar, label=label)
        return logits.log_softmax(-1) + math.log(VOCAB)


def mean_pair(schedule, length=LENGTH):
    network = TableNetwork(random_logits(length), drift=0.7)
    md4 = MD4(network, mask_id=MASK, schedule=schedule)
    return md4, SEDD(MeanScores(network), schedule=schedule, conditioning="time")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_score_of_a_mean_has_md4_s_bound(schedule):
    md4, sedd = mean_pair(schedule, 3)
    tokens, noise = all_sequences(3), Noise.for_batch(3, VOCAB**3)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    drawn = Continuous(md4.schedule).draw(everywhere, noise, 0, len(tokens))
    theirs = md4.loss_given(Batch.of(tokens, is_token=everywhere), drawn)
    state = torch.where(drawn.masked, MASK, tokens)
    ours = sedd.loss_given(Batch.of(tokens, is_token=everywhere), Noised(state, drawn.times))
    assert torch.equal(ours.counted, theirs.counted)
    ends = float(sedd.end_nats(tokens)[0, 0])
    torch.testing.assert_close(ours.per_token - ends, theirs.per_token, rtol=1e-6, atol=1e-9)
    # The whole bound, by quadrature on both sides. Ours is that of a start from masks alone.
    md4, sedd = mean_pair(schedule)
    all_hidden = md4.schedule.one_minus_alpha(torch.ones(4, dtype=torch.float64))
    x0, masks = torch.tensor([2, 1]), torch.tensor(list(itertools.product([0, 1], repeat=2))) == 1

    def at(t):
        times = torch.full((4,), t, dtype=torch.float64)
        hidden = md4.schedule.one_minus_alpha(times) / all_hidden
        hidden = hidden[:, None]
        chance = torch.where(masks, hidden, 1 - hidden).prod(-1)
        drawn = Corrupted(masks, md4.schedule.weight(times)[:, None].expand(4, 2), times)
        loss = md4.loss_given(Batch.of(x0.expand(4, -1), is_token=torch.ones_like(masks)), drawn)
        return float((chance * loss.per_sequence).sum().detach())

    assert bound_of(sedd, x0) == pytest.approx(quadrature(at) + 2 * ends, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_analytic_steps_of_a_mean_are_md4_s_ancestral_ones(steps):
    md4, sedd = mean_pair("mdlm:loglinear")
    law = chain_law(md4, LENGTH, sampling_grid("uniform", steps), md4.schedule)
    torch.testing.assert_close(rule_law(sedd, "analytic", steps), law)
    assert_law(sample(sedd, SAMPLES, sampler="analytic", steps=steps, seed=steps), law)


def test_exact_scores_satisfy_the_constraint():
    """sum over tokens of s_j = alpha / (1 - alpha), from p_t itself; s is that times the mean."""
    model, law = exact_model("absorbing")
    states, close = states_of(model.graph), torch.testing.assert_close
    mean = bayes_logits(LENGTH, law).softmax(-1)
    numbers = (states * (VOCAB + 1) ** torch.arange(LENGTH)).sum(-1)  # in the order of the tables
    for time in (0.1, 0.5, 0.95):
        scores = all_scores(model, time)[..., :VOCAB]
        t = torch.tensor(time, dtype=torch.float64)
        odds = float(model.schedule.alpha(t) / model.schedule.one_minus_alpha(t))
        masked = states == MASK
        sums = scores.sum(-1)[masked]
        close(sums, torch.full_like(sums, odds), rtol=1e-6, atol=0)
        close(scores[masked], odds * mean[numbers][masked], rtol=1e-6, atol=0)
        sigma = total_noise(model.schedule, t).expand(states.shape)
        again = score_from_mean(model.graph, mean[numbers], states, sigma)[..., :VOCAB]
        close(scores[masked], again[masked], rtol=1e-6, atol=0)


@chains
def test_mean_and_score_are_inverse(chain):
    graph = CHAINS[chain]
    generator = torch.Generator().manual_seed(0)
    x = torch.full((50,), graph.mask_id or 0)
    mean = torch.rand(50, graph.tokens, generator=generator, dtype=torch.float64)
    mean = mean / mean.sum(-1, keepdim=True)
    sigma = 0.1 + torch.rand(50, generator=generator, dtype=torch.float64)
    score = score_from_mean(graph, mean, x, sigma)
    torch.testing.assert_close(score.gather(-1, x[:, None]), torch.ones(50, 1).double())
    torch.testing.assert_close(mean_from_score(graph, score, x, sigma), mean)


# Campbell et al. ---------------------------------------------------------------------------------


@chains
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_campbell_s_loss_differs_by_a_constant_without_the_model(chain, schedule):
    graph = CHAINS[chain]
    for time, x0 in itertools.product((0.05, 0.5, 0.98), all_sequences(LENGTH)[::3]):
        gaps = []
        for seed in range(3):
            model = model_of(chain, schedule, seed)
            t = torch.tensor(time, dtype=torch.float64)
            dsigma = noise_rate(model.schedule, t)
            forward = dsigma * over_sequences(graph.matrix(), LENGTH)
            law = noised_law(graph, point(graph, x0), total_noise(model.schedule, t))
            ours = expected_loss(model, x0, time)
            theirs = float(campbell_rate(forward, dsigma * model_rates(model, time), law))
            gaps.append(ours - theirs)
            assert gaps[-1] == pytest.approx(float(campbell_constant(forward, law)), rel=1e-6)
        assert gaps == pytest.approx([gaps[0]] * 3, rel=1e-6)


# Samplers ----------------------------------------------------------------------------------------


@both_samplers
@chains
@pytest.mark.parametrize(
    ("steps", "grid", "schedule"),
    [
        (1, "uniform", "mdlm:loglinear"),
        (3, "cosine", "mdlm:loglinear"),
        (4, "uniform", "mdlm:geometric"),
    ],
)
def test_samplers_follow_the_law_of_their_rule(sampler, chain, steps, grid, schedule):
    model = model_of(chain, schedule, seed=2)
    law = rule_law(model, sampler, steps, grid)
    drawn = sample(model, SAMPLES, sampler=sampler, steps=steps, grid=grid, seed=10 + steps)
    assert_law(drawn, law)


@both_samplers
@both_graphs
def test_rules_converge_to_the_data_law_for_exact_scores(sampler, chain):
    model, data = exact_model(chain)
    gaps = [
        float((rule_law(model, sampler, steps) - data).abs().sum() / 2) for steps in (2, 8, 32, 128)
    ]
    assert all(a > 2 * b for a, b in itertools.pairwise(gaps))
    assert gaps[-1] < 0.005


@both_samplers
@both_graphs
def test_rules_converge_to_the_law_that_the_bound_is_of(sampler, chain):
    """For scores of no law as well; masks that the law's last step leaves count nothing."""
    model = model_of(chain, seed=3)
    numbers = [int(point(model.graph, x0).argmax()) for x0 in all_sequences(LENGTH)]
    law = reverse_law(model, 300)[numbers]
    law = law / law.sum()
    gaps = [
        float((rule_law(model, sampler, steps) - law).abs().sum() / 2) for steps in (2, 8, 32, 128)
    ]
    assert all(a > 1.5 * b for a, b in itertools.pairwise(gaps))
    assert gaps[-1] < 0.01


@both_samplers
def test_exact_scores_sample_the_data(sampler):
    model, data = exact_model("uniform")
    drawn = sample(model, 4000, sampler=sampler, steps=96, seed=1)
    assert_law(drawn, data)


@both_samplers
@both_graphs
def test_prompts_stay_and_the_rest_follows_the_rule(sampler, chain):
    model, known = model_of(chain, seed=4), 1
    prompt = Prompt(torch.tensor([[0, known]]), torch.tensor([[False, True]]))
    drawn = sample(model, SAMPLES, prompt=prompt, sampler=sampler, steps=3, seed=8)
    assert bool((drawn[:, 1] == known).all())
    states = states_of(model.graph)
    start = model.graph.stationary()[states[:, 0]] * (states[:, 1] == known)
    assert_law(drawn, rule_law(model, sampler, 3, start=start, fixed=(1,)))


@both_samplers
@both_graphs
def test_callbacks_see_every_step_and_samples_do_not_depend_on_their_batch(sampler, chain):
    model, seen = model_of(chain), []
    options = {"sampler": sampler, "steps": 6, "seed": 3}
    drawn = sample(model, 20, callback=seen.append, **options)
    assert [step.index for step in seen] == list(range(6))
    assert torch.equal(seen[-1].state.tokens, drawn)
    assert bool(seen[-1].state.revealed.all())
    assert sum(len(step.rows) for step in seen) == drawn.numel()
    assert bool((drawn < VOCAB).all())
    for step in seen:
        shown = step.state
        assert torch.equal(shown.tokens[shown.revealed], drawn[shown.revealed])
    alone = sample(model, 3, first=11, **options)
    assert torch.equal(alone, drawn[11:14])


@both_samplers
@both_graphs
def test_decoding_acts_on_where_a_position_jumps(sampler, chain):
    model = model_of(chain)
    best = sample(model, 200, sampler=sampler, steps=1, temperature=0.0)
    same = sample(model, 200, sampler=sampler, steps=1, top_k=1)
    assert torch.equal(best, same)
    if chain == "absorbing":  # one step from all masks: the most probable token everywhere
        assert len(best.unique(dim=0)) == 1
    plain = sample(model, 200, sampler=sampler, steps=4, seed=2)
    assert torch.equal(sample(model, 200, sampler=sampler, steps=4, seed=2, top_k=VOCAB), plain)
    nearly = sample(model, 200, sampler=sampler, steps=4, seed=2, temperature=1 + 1e-12)
    assert torch.equal(nearly, plain)


def test_large_steps_are_taken_in_parts(monkeypatch):
    model = model_of("uniform")
    whole = sample(model, 40, steps=3, seed=1)
    monkeypatch.setattr(score_samplers, "AT_ONCE", 7)
    assert torch.equal(sample(model, 40, steps=3, seed=1), whole)


# The method --------------------------------------------------------------------------------------


@both_graphs
def test_padding_is_never_noised_and_never_counts(chain):
    model, tokens = model_of(chain), all_sequences(LENGTH).clone()
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 1] = False
    valid[0] = False  # a row of padding alone
    noise = Noise.for_batch(3, len(tokens))
    loss = model.loss(Batch.of(tokens, is_token=valid), noise)
    assert int(loss.tokens) == int(valid.sum())
    assert not bool((loss.counted & ~valid).any())
    assert not bool(loss.per_token[~valid].any())
    garbage = torch.where(valid, tokens, -7)
    again = model.loss(Batch.of(garbage, is_token=valid), noise)
    assert torch.equal(again.per_token, loss.per_token)
    assert bool(torch.isfinite(loss.objective))
    torch.testing.assert_close(loss.objective, loss.per_token.sum() / valid.sum())


@both_graphs
def test_rows_of_a_global_batch_are_what_they_are_in_it(chain):
    model, tokens = model_of(chain), all_sequences(LENGTH)
    whole = model.loss(Batch.of(tokens), Noise.for_batch(5, 9), 4).per_token
    part = model.loss(Batch.of(tokens[3:6], size=9), Noise.for_batch(5, 3, 3), 4).per_token
    torch.testing.assert_close(part, whole[3:6])


@pytest.mark.parametrize("name", ["sedd", "sedd-uniform"])
def test_build_learns_and_samples(name):
    torch.manual_seed(0)
    options = TransformerOptions(length=4, width=32, depth=1, heads=2)
    model = METHODS[name].build(options, 5)
    assert (model.family, model.mask_id, model.vocab_size) == ("score", 5, 6)
    tokens = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]]).repeat(32, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)

    def value():
        with torch.no_grad():
            losses = [
                model.loss(Batch.of(tokens), Noise.for_batch(1, 64), step) for step in range(20)
            ]
            return float(torch.stack([loss.objective for loss in losses]).mean())

    before = value()
    for step in range(100):
        loss = model.loss(Batch.of(tokens), Noise.for_batch(0, 64), step)
        optimiser.zero_grad()
        loss.objective.backward()
        optimiser.step()
    assert value() < 0.75 * before
    drawn = sample(model, 4, steps=4)
    assert drawn.shape == (4, 4)
    assert int(drawn.max()) < 5


def test_bad_input():
    graph = CHAINS["absorbing"]
    with pytest.raises(InputError, match="mdlm:loglinear"):
        SEDD(Scores(graph), schedule="log-linear")
    with pytest.raises(InputError, match="conditioning"):
        SEDD(Scores(graph), conditioning="never")
    with pytest.raises(InputError, match="graph"):
        SEDD(Scores(graph), graph="circular")
    with pytest.raises(InputError, match="graph"):
        SEDD(Scores(graph), graph=Uniform(7))
    with pytest.raises(InputError, match="causal"):
        SEDD(
            CausalTransformer(TransformerConfig(vocab_size=4, length=2, width=8, heads=2, depth=1))
        )
    with pytest.raises(InputError, match="outputs"):
        SEDD(Scores(graph), graph="uniform")
    model = SEDD(Scores(graph))
    with pytest.raises(InputError, match="mask"):
        model.loss(Batch.of(torch.tensor([[0, MASK]])), Noise.for_batch(0, 1))
    with pytest.raises(InputError, match="does not fit"):
        sample(model, 1, sampler="ancestral")
    with pytest.raises(InputError, match="does not fit"):
        sample(table_md4(random_logits(2)), 1, sampler="analytic")


MEMORY = """
import resource, sys, torch
torch.set_num_threads(1)
from partita.contracts.batch import Batch
from partita.methods.sedd import SEDD
from partita.networks.options import TransformerOptions
from partita.randomness import Noise
from partita.samplers import sample, score
graph, states = sys.argv[1], 50258
tokens = states - (graph == "absorbing")
model = SEDD.build(TransformerOptions(length=256, width=64, depth=1, heads=2), tokens, graph=graph)
x = torch.arange(512).view(2, 256) * 97
for step in range(2):
    model.loss(Batch.of(x), Noise.for_batch(0, 2), step).objective.backward()
if sys.argv[2] == "sample":
    sample(model, 2, steps=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@both_graphs
def test_memory_at_a_large_vocabulary(chain):
    """Training and sampling with V = 50,258 and 2 x 256 tokens: no V x V, under 3 GB in all."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, chain, "sample"], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 3


# The report --------------------------------------------------------------------------------------


def test_consistency_of_a_mean_is_perfect():
    _, model = mean_pair("mdlm:loglinear", 3)
    tokens = all_sequences(3).repeat(4, 1)
    rows = score_consistency(model, tokens, (0.1, 0.5, 1.0), batch_size=50)
    assert [row.time for row in rows] == [0.1, 0.5, 1.0]
    for row in rows:
        assert row.positions > 0
        assert row.target == pytest.approx(row.alpha / (1 - row.alpha))
        assert (row.mean, row.low, row.high) == pytest.approx((1, 1, 1), rel=1e-6)
        assert row.deviation == pytest.approx(0, abs=1e-6)


def test_consistency_of_free_scores_is_measured(tmp_path):
    graph = CHAINS["absorbing"]
    network = Scores(graph, drift=0.0)
    with torch.no_grad():
        network.table.fill_(math.log(2))  # every sum is twice its target
    model = SEDD(network)
    tokens = all_sequences(LENGTH).repeat(8, 1)
    rows = score_consistency(model, tokens, seed=1)
    assert len(rows) == 20
    for row in rows:
        assert (row.mean, row.low, row.high) == pytest.approx((2, 2, 2))
        assert row.deviation == pytest.approx(math.log(2))
    text = consistency_table(rows).splitlines()
    assert len(text) == 21
    assert text[-1].split()[3] == "2.0000"
    path = tmp_path / "consistency.png"
    plot_consistency(rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_consistency_spread_and_padding():
    model = SEDD(Scores(CHAINS["absorbing"], seed=2))
    tokens = all_sequences(LENGTH).repeat(20, 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 1] = False
    (row,) = score_consistency(model, tokens, [1.0], is_token=valid)
    assert row.positions <= len(tokens)
    (row,) = score_consistency(model, tokens, [0.7])
    assert row.low < row.mean < row.high
    assert row.deviation > 0.01
    again = score_consistency(model, tokens, [0.7], batch_size=7)[0]
    assert again.mean == pytest.approx(row.mean)
    (empty,) = score_consistency(model, tokens[:1], [1e-9])
    assert empty.positions == 0
    assert math.isnan(empty.low)


def test_consistency_is_of_absorbing_score_models():
    tokens = all_sequences(LENGTH)
    with pytest.raises(InputError, match="absorbing"):
        score_consistency(model_of("uniform"), tokens)
    with pytest.raises(InputError, match="times"):
        score_consistency(model_of("absorbing"), tokens, [0.0])
    with pytest.raises(InputError, match="times"):
        score_consistency(model_of("absorbing"), tokens, [])
