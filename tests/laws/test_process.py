"""The forward process, its posterior and the reverse step, as distributions."""

from __future__ import annotations

import pytest
import torch

from partita.processes.masked import marginal, posterior, reverse, states, transition
from partita.schedules import SCHEDULES, make_schedule
from tests.laws.tables import MASK, VOCAB

X = torch.arange(VOCAB)[None]
SIZE = VOCAB + 1
S, T = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.8], dtype=torch.float64)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_marginal_is_the_composition_of_transitions(name):
    schedule = make_schedule(name)
    at_s = marginal(X, S, schedule, MASK, SIZE)
    everything = torch.arange(SIZE)[None]
    step = transition(everything, S, T, schedule, MASK, SIZE)[0]
    torch.testing.assert_close(at_s @ step, marginal(X, T, schedule, MASK, SIZE))


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_posterior_is_bayes_rule(name):
    schedule = make_schedule(name)
    q_s = marginal(X, S, schedule, MASK, SIZE)
    forward = transition(torch.arange(SIZE)[None], S, T, schedule, MASK, SIZE)[0]
    for z_t in (X, torch.full_like(X, MASK)):
        joint = q_s * forward[:, z_t[0]].T[None]
        bayes = joint / joint.sum(-1, keepdim=True)
        torch.testing.assert_close(posterior(X, z_t, S, T, schedule, MASK, SIZE), bayes)


def test_reverse_step_of_a_certain_model_is_the_posterior():
    schedule, z_t = make_schedule("cosine"), torch.full_like(X, MASK)
    certain = reverse(states(X, VOCAB), z_t, S, T, schedule, MASK)
    torch.testing.assert_close(certain, posterior(X, z_t, S, T, schedule, MASK, SIZE))


def test_last_reverse_step_reveals_everything():
    schedule, z_t = make_schedule("linear"), torch.full_like(X, MASK)
    mean = torch.full((1, VOCAB, VOCAB), 1 / VOCAB, dtype=torch.float64)
    last = reverse(mean, z_t, torch.zeros_like(S), S, schedule, MASK)
    assert torch.equal(last[..., MASK], torch.zeros(1, VOCAB, dtype=torch.float64))


def test_step_divergence_is_a_weighted_cross_entropy():
    """KL(q(z_s|z_t,x) || p(z_s|z_t)) = r * -log x_theta(x) (MDLM eq. 8, MD4 eq. 4)."""
    schedule, z_t = make_schedule("cosine"), torch.full_like(X, MASK)
    mean = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).expand(1, VOCAB, VOCAB)
    q = posterior(X, z_t, S, T, schedule, MASK, SIZE)
    p = reverse(mean, z_t, S, T, schedule, MASK)
    divergence = torch.special.xlogy(q, q / p).nansum(-1)
    expected = schedule.reveal_probability(S, T) * -mean[0].diagonal().log()
    torch.testing.assert_close(divergence[0], expected)
