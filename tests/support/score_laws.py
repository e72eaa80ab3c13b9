"""Score models with tables as networks, and the distributions of their samplers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from partita.contracts.batch import Batch
from partita.methods.sedd import SEDD
from partita.networks.base import Network
from partita.processes.chains import over_sequences
from partita.processes.ctmc import Rates, noise_rate, total_noise
from partita.processes.draws import Noised
from partita.processes.graphs import Absorbing, Uniform
from partita.schedules import sampling_grid
from tests.laws.tables import VOCAB, TableConfig, all_sequences

LENGTH = 2


OWN = torch.tensor([[-1.0, 0.3, 0.9], [0.8, -0.5, 0.1], [0.2, 0.2, -1.0]], dtype=torch.float64)


CHAINS = {"absorbing": Absorbing(VOCAB), "uniform": Uniform(VOCAB), "own": Rates(OWN)}


both_graphs = pytest.mark.parametrize("chain", ["absorbing", "uniform"])


both_samplers = pytest.mark.parametrize("sampler", ["tau-leaping", "analytic"])


def states_of(graph, length=LENGTH):
    """Every sequence of states, the first position slowest (as in `over_sequences`)."""
    return torch.tensor(list(itertools.product(range(graph.states), repeat=length)))


class Scores(nn.Module, Network):
    """Outputs looked up by state, which drift with the conditioning."""

    def __init__(self, graph, seed=0, drift=0.1, length=LENGTH):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (graph.states**length, length, graph.tokens)
        table = 0.8 * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.table, self.drift, self.base = nn.Parameter(table), drift, graph.states
        self.config = TableConfig(length, vocab_size=graph.states, outputs=graph.tokens)

    def number(self, tokens):
        return (tokens * self.base ** torch.arange(tokens.shape[1]).flip(0)).sum(-1)

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        found = self.table[self.number(tokens)][queries.rows, queries.positions]
        return found if scalar is None else found * (1 + self.drift * scalar[queries.rows, None])


def data_at_zero(graph, law):
    """A distribution over complete sequences as one over all states."""
    start = torch.zeros(graph.states**LENGTH, dtype=torch.float64)
    numbers = (all_sequences(LENGTH) * graph.states ** torch.arange(LENGTH).flip(0)).sum(-1)
    start[numbers] = law
    return start


def noised_law(graph, start, sigma):
    """p_t over all states, position by position."""
    q = torch.linalg.matrix_exp(min(float(sigma), 700) * over_sequences(graph.matrix(), LENGTH))
    return q @ start


def drawn_noise(model, time):
    """The noise level of a bound's states, from its definition: only masks at t = 1."""
    t = torch.tensor(float(time), dtype=torch.float64)
    if model.graph.mask_id is None or isinstance(model.graph, Rates):
        return total_noise(model.schedule, t)
    hidden = model.schedule.one_minus_alpha(t) / model.schedule.one_minus_alpha(torch.ones_like(t))
    return -torch.log1p(-hidden)


def model_of(chain, schedule="mdlm:loglinear", seed=0, **options):
    graph = CHAINS[chain]
    return SEDD(Scores(graph, seed), graph=graph, schedule=schedule, **options)


def all_scores(model, time):
    """s(x)_y for every state and position at a time, [states, L, S]."""
    states = states_of(model.graph)
    rows, positions = torch.ones_like(states).nonzero(as_tuple=True)
    times = torch.full((len(states),), float(time), dtype=torch.float64)
    log_score = model.log_score(states, times, rows, positions).detach()
    return log_score.exp().view(*states.shape, -1)


def point(graph, x0):
    return data_at_zero(graph, (all_sequences(LENGTH) == x0).all(-1).double())


def expected_loss(model, x0, time, sigma=None):
    """The expected loss of the library over q(z_t | x0), without its end terms.

    The noise of q is that of the chain unless `sigma` is given.
    """
    graph, states = model.graph, states_of(model.graph)
    times = torch.full((len(states),), float(time), dtype=torch.float64)
    tokens = x0.expand(len(states), -1)
    loss = model.loss_given(
        Batch.of(tokens, is_token=torch.ones_like(states, dtype=torch.bool)), Noised(states, times)
    )
    ends = model.end_nats(x0[None]).sum()
    sigma = total_noise(model.schedule, times[0]) if sigma is None else sigma
    chance = noised_law(graph, point(graph, x0), sigma)
    nats = (loss.per_sequence - ends).detach()
    return float(torch.where(chance > 0, chance * nats, 0.0).sum())


def quadrature(function, nodes=8):
    """Gauss-Legendre over t, in pieces that shrink towards both ends.

    A uniform chain diverges at a rate like -log t near 0, and dsigma is steep near 1.
    """
    points, shares = np.polynomial.legendre.leggauss(nodes)
    total = 0.0
    for low, high in itertools.pairwise((0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 1)):
        half = (high - low) / 2
        total += half * sum(
            w * function(low + half * (x + 1)) for x, w in zip(points, shares, strict=True)
        )
    return total


def bound_of(model, x0, nodes=8):
    integral = quadrature(lambda t: expected_loss(model, x0, t, drawn_noise(model, t)), nodes)
    return integral + float(model.end_nats(x0[None]).sum())


def rule_step(model, rule, t, s, *, last, fixed=()):
    """The transition matrix of one step over all states, by matrix exponentials."""
    graph, states, q = model.graph, states_of(model.graph), model.graph.matrix()
    scores, t, s = all_scores(model, t), torch.tensor(t).double(), torch.tensor(s).double()
    identity = torch.eye(graph.states, dtype=torch.float64)
    law = torch.zeros(*states.shape, graph.states, dtype=torch.float64)
    taken = total_noise(model.schedule, t) - (0 if last else total_noise(model.schedule, s))
    for index, position in itertools.product(range(len(states)), range(LENGTH)):
        x, score = int(states[index, position]), scores[index, position]
        if position in fixed or graph.mask_id not in (None, x):
            law[index, position, x] = 1.0
            continue
        if rule == "analytic" or last:
            step = torch.linalg.matrix_exp(-taken * q) @ score
            step = step * torch.linalg.matrix_exp(taken * q)[x]
            if last:
                step[graph.tokens :] = 0
        else:
            rates = q[x] * score
            rates[x] = 0
            rates[x] = -rates.sum()
            step = identity[x] + (t - s) * noise_rate(model.schedule, t) * rates
        step = step.clamp(min=0)
        law[index, position] = step / step.sum()
    return torch.stack([law[:, i][:, states[:, i]] for i in range(LENGTH)]).prod(0)


def rule_law(model, rule, steps, grid="uniform", start=None, fixed=()):
    """The distribution over complete sequences of the T-step rule."""
    states = states_of(model.graph)
    law = model.graph.stationary()[states].prod(-1) if start is None else start
    pairs = list(itertools.pairwise(sampling_grid(grid, steps).tolist()))
    for index, (t, s) in enumerate(pairs):
        law = law @ rule_step(model, rule, t, s, last=index + 1 == steps, fixed=fixed)
    numbers = [int(point(model.graph, x0).argmax()) for x0 in all_sequences(LENGTH)]
    return law[numbers]
