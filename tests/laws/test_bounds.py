"""Every loss equals its integral, every bound is above the exact negative log-likelihood."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from partita.contracts.batch import Batch
from partita.likelihood.bounds import nelbo, scattered
from partita.likelihood.enumeration import exact_log_likelihood
from partita.processes.corruption import (
    Rate,
)
from partita.processes.masked import marginal, posterior, prior_nats, reconstruction_nats, reverse
from partita.randomness import Noise
from partita.schedules import make_schedule, sampling_grid
from tests.laws.tables import (
    MASK,
    VOCAB,
    all_sequences,
    all_states,
    bayes_logits,
    chain_step,
    data_law,
    mean_prediction,
    random_logits,
    state_index,
    table_md4,
    table_mdlm,
)
from tests.support.bounds import CORRUPTIONS, EXACT, continuous_bound, discrete_bound, subset_bound


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("length", [2, 3])
def test_continuous_bound_equals_the_k_form_for_every_schedule(name, length):
    method = table_mdlm(random_logits(length), schedule=name)
    for x in all_sequences(length)[:: VOCAB + 1]:
        assert continuous_bound(method, x) == pytest.approx(subset_bound(method, x), rel=1e-7)


@pytest.mark.parametrize("name", EXACT)
def test_discrete_bound_converges_to_the_continuous_one(name):
    method = table_md4(random_logits(2), schedule=name)  # told the time
    x = torch.tensor([2, 0])
    exact = continuous_bound(method, x)
    errors = [abs(discrete_bound(method, x, steps) - exact) for steps in (64, 256, 1024)]
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.02 * exact


@pytest.mark.parametrize("name", EXACT)
def test_discrete_bound_is_a_sum_of_step_divergences(name):
    """sum_i E_q KL(q(z_s|z_t,x) || p(z_s|z_t)), from the distributions themselves."""
    steps, method, x = 5, table_md4(random_logits(2), schedule=name), torch.tensor([[1, 2]])
    states, total = all_states(2), 0.0
    for i in range(1, steps + 1):
        t, s = (torch.full((len(states),), v / steps, dtype=torch.float64) for v in (i, i - 1))
        truth = x.expand(len(states), -1)
        q_t = marginal(truth, t, method.schedule, MASK, VOCAB + 1)
        chance = q_t.gather(-1, states[..., None])[..., 0].prod(-1)
        q = posterior(truth, states, s, t, method.schedule, MASK, VOCAB + 1)
        mean = mean_prediction(method, states, i / steps)
        p = reverse(mean, states, s, t, method.schedule, MASK)
        divergence = torch.special.xlogy(q, q / p).nan_to_num().sum((-1, -2))
        total += float((chance * divergence).sum())
    assert discrete_bound(method, x[0], steps) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", EXACT)
def test_bayes_bound_falls_as_steps_double(name):
    law = data_law(3)
    method = table_mdlm(bayes_logits(3, law), schedule=name)

    def average(bound):
        return sum(float(p) * bound(x) for p, x in zip(law, all_sequences(3), strict=True))

    bounds = [average(lambda x, n=n: discrete_bound(method, x, n)) for n in (1, 2, 4, 8, 16)]
    limit = average(lambda x: subset_bound(method, x))
    entropy = float(-(law * law.log()).sum())
    assert all(a > b for a, b in itertools.pairwise([*bounds, limit]))
    assert limit >= entropy - 1e-12


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_above_the_exact_value(length, seed):
    method = table_mdlm(random_logits(length, seed), schedule="cosine")
    visible = method.schedule.alpha(sampling_grid("uniform", 4))
    totals = torch.zeros(2, dtype=torch.float64)
    for x in all_sequences(length):
        any_order = exact_log_likelihood(method, x)
        four_steps = exact_log_likelihood(method, x, visible)
        totals += torch.tensor([any_order, four_steps], dtype=torch.float64).exp()
        assert subset_bound(method, x) >= -any_order - 1e-12
        assert discrete_bound(method, x, 4) >= -four_steps - 1e-12
    torch.testing.assert_close(totals, torch.ones_like(totals))  # both are probabilities


def test_any_order_likelihood_is_the_mean_over_permutations():
    length, method = 3, table_mdlm(random_logits(3))
    x = torch.tensor([0, 2, 1])
    total = 0.0
    for order in itertools.permutations(range(length)):
        revealed, probability = torch.zeros(1, length, dtype=torch.bool), 1.0
        for position in order:
            where = torch.tensor([0]), torch.tensor([position])
            log_probs = method.predict(x[None], revealed, *where)
            probability *= float(log_probs[0, x[position]].exp().detach())
            revealed[0, position] = True
        total += probability / 6
    assert exact_log_likelihood(method, x) == pytest.approx(np.log(total), rel=1e-12)


@pytest.mark.parametrize("name", EXACT)
def test_exact_schedules_need_no_prior_and_no_reconstruction(name):
    schedule = make_schedule(name)
    assert prior_nats(schedule, 5, VOCAB) == 0
    assert reconstruction_nats(schedule, 5, VOCAB) == 0


@pytest.mark.parametrize("name", ["md4:linear", "mdlm:loglinear", "md4:poly2"])
def test_truncated_schedules_stay_bounds_with_both_end_terms(name):
    """A chain that starts from the matching prior and guesses what is still hidden at the end."""
    length, steps = 2, 3
    method = table_mdlm(random_logits(length), schedule=name)
    states, schedule = all_states(length), method.schedule
    left = float(schedule.alpha(torch.ones((), dtype=torch.float64)))
    one = torch.tensor([left / VOCAB] * VOCAB + [1 - left], dtype=torch.float64)
    law = one[states].prod(-1)
    for i in range(steps, 0, -1):
        law = law @ chain_step(method, length, (i - 1) / steps, i / steps, schedule)
    guess = torch.eye(VOCAB + 1, VOCAB, dtype=torch.float64)
    guess[MASK] = 1 / VOCAB
    for x in all_sequences(length):
        likelihood = float((law * guess[states, x].prod(-1)).sum())
        ends = prior_nats(schedule, length, VOCAB) + reconstruction_nats(schedule, length, VOCAB)
        assert discrete_bound(method, x, steps) + ends >= -np.log(likelihood)


def test_rate_law_is_masked_generative_modelling():
    """BERT's fixed 15 %, and any weight."""
    method = table_mdlm(random_logits(3), schedule="linear")
    bert = Rate(rate=lambda t: torch.full_like(t, 0.15), weight=lambda t: 2 * torch.ones_like(t))
    rows = 20_000
    drawn = bert.draw(torch.ones(rows, 3, dtype=torch.bool), Noise.for_batch(0, rows), 0, rows)
    assert float(drawn.masked.double().mean()) == pytest.approx(0.15, abs=4 * (0.13 / 6e4) ** 0.5)
    loss = method.loss_given(
        Batch.of(torch.zeros(rows, 3, dtype=torch.long), is_token=drawn.masked | True), drawn
    )
    torch.testing.assert_close(loss.per_token, 2 * loss.cross_entropy)
    plain = Rate(make_schedule("linear")).draw(
        torch.ones(rows, 3, dtype=torch.bool), Noise.for_batch(0, rows), 0, rows
    )
    assert float(plain.masked.double().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_padding_is_never_hidden_and_never_counts(name):
    method = table_mdlm(random_logits(3), schedule="cosine")
    tokens = all_sequences(3)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 2] = False
    valid[0] = False  # a row of padding alone
    loss = method.loss(
        Batch.of(tokens, is_token=valid),
        Noise.for_batch(3, len(tokens)),
        corruption=CORRUPTIONS[name],
    )
    assert int(loss.tokens) == int(valid.sum())
    assert not bool((loss.counted & ~valid).any())
    assert bool(torch.isfinite(loss.objective))


def test_state_numbers_agree():
    assert int(state_index(torch.full((1, 3), MASK))) == (VOCAB + 1) ** 3 - 1


def test_a_hard_part_of_a_text_costs_no_accuracy():
    """Numbered one after the other, all sequences of a part would have times that lie together."""
    method, texts = table_mdlm(bayes_logits(4, data_law(4))), all_sequences(4)
    chances = torch.tensor([exact_log_likelihood(method, x) for x in texts])
    easy, hard = texts[chances.argmax()], texts[chances.argmin()]
    parted = nelbo(method, torch.stack([easy] * 400 + [hard] * 400), replicates=40)
    mixed = nelbo(method, torch.stack([easy, hard] * 400), replicates=40)
    assert abs(parted.nats - mixed.nats) < 4 * (parted.nats_error + mixed.nats_error)
    assert parted.nats_error < 2 * mixed.nats_error  # as they follow each other: 40 times


@pytest.mark.parametrize("count", [*range(20), 100, 512, 1953, 30030])
def test_neighbours_are_scattered(count):
    numbers = scattered(count)
    assert numbers.sort().values.equal(torch.arange(count))
    size = max(1, count // 10)
    for start in range(0, count - size + 1, size):  # a tenth of them leaves no large gap
        part = numbers[start : start + size].sort().values
        gaps = torch.diff(torch.cat([part, part[:1] + count]))
        assert int(gaps.max()) * size <= 3 * count
