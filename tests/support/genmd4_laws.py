"""GenMD4 with tables as networks, its exact bounds and distributions."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

from partita.contracts.batch import Batch
from partita.methods.genmd4 import GenMD4, MaskedTwice
from tests.laws.tables import (
    VOCAB,
    TableNetwork,
    all_sequences,
    all_states,
    random_logits,
    state_index,
)

POWERS = (0.7, 1.0, 2.2)  # below, at and above the linear schedule


def table_genmd4(length=2, powers=POWERS, drift=0.7, seed=0, **ends) -> GenMD4:
    model = GenMD4(TableNetwork(random_logits(length, seed), drift), **ends)
    model.raw = nn.Parameter(torch.tensor(powers, dtype=torch.float64).expm1().log())
    return model


def all_masks(length):
    return torch.tensor(list(itertools.product([False, True], repeat=length)))


def quadrature(nodes, start=0.0):
    """Times in [start, 1] and weights that sum to 1 - start: Gauss-Legendre in v, t = v^4.

    Near t = 0 the integrand behaves like t^(w-1), which is steep for small exponents.
    """
    points, shares = map(torch.from_numpy, np.polynomial.legendre.leggauss(nodes))
    low = start**0.25
    v = low + (1 - low) * (points + 1) / 2
    return v**4, shares / 2 * (1 - low) * 4 * v**3


def losses_at(model, x, times):
    """The expected loss at each time, differentiable through the masks' distribution."""
    masks = all_masks(x.numel())
    masked, row_times = masks.repeat(len(times), 1), times.repeat_interleave(len(masks))
    tokens, valid = x.expand(len(masked), -1), torch.ones_like(masked)
    loss = model.loss_given(
        Batch.of(tokens, is_token=valid), MaskedTwice((masked, masked), row_times)
    )
    nats = (loss.per_token - model.ends(tokens, valid)).sum(-1)
    chance = model.log_mask(tokens, masked, row_times.log(), valid).exp()
    return (chance * nats).reshape(len(times), -1).sum(-1)


def continuous_bound(model, x, nodes=200):
    times, shares = quadrature(nodes)
    return (shares * losses_at(model, x, times)).sum()


def step_table(model, states, s, t):
    """p(z_s | z_t) at every position of every state, by the model's prediction and step."""
    batch = torch.ones(len(states), dtype=torch.float64)
    with torch.no_grad():
        log_mean = model.log_mean(states, t * batch)
        return model.step(log_mean, states, s * batch, t * batch)


def transition(model, length, s, t):
    """The matrix of one reverse step over all states; positions are independent given z_t."""
    states = all_states(length)
    step = step_table(model, states, s, t)
    return torch.stack([step[:, l][:, states[:, l]] for l in range(length)]).prod(0)  # noqa: E741


def chain_law(model, start, grid):
    """The distribution of complete sequences when the chain starts from one state."""
    law = torch.zeros((VOCAB + 1) ** len(start), dtype=torch.float64)
    law[state_index(torch.tensor([start]))] = 1
    for t, s in itertools.pairwise(grid.tolist()):
        law = law @ transition(model, len(start), s, t)
    return law[state_index(all_sequences(len(start)))]
