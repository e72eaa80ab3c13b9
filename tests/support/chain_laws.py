"""Chains with tables as networks, and their exact distributions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from partita.methods.masked_method import TIME_SCALE
from partita.networks.base import Network
from partita.processes.matrices import Own
from partita.processes.transitions import TRANSITIONS
from tests.laws.tables import VOCAB, TableConfig, random_logits, state_index

BETA_ROWS = {
    "falling": [0.5, 0.2, 0.4, 0.1],
    "forgets": [0.3, 1.0, 0.2, 1.0],  # 1 in the middle: everything before it is lost
    "rests": [0.0, 0.6, 0.0, 0.3],
}


def explicit(kind, betas, tokens=VOCAB):
    """The matrices Q_1..Q_T, from the definitions in the paper's appendix A.2."""
    matrices = []
    for beta in betas:
        size = tokens + (kind == "absorbing")
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for i, j in itertools.product(range(size), repeat=2):
            if kind == "absorbing":
                share = 1.0 if j == tokens else 0.0
                matrix[i, j] = (1 - beta) * (i == j) + beta * share
            elif kind == "uniform":
                matrix[i, j] = (1 - beta) * (i == j) + beta / size
            elif i != j:
                total = sum(
                    math.exp(-4 * n**2 / ((size - 1) ** 2 * beta)) for n in range(1 - size, size)
                )
                matrix[i, j] = math.exp(-4 * (i - j) ** 2 / ((size - 1) ** 2 * beta)) / total
        if kind == "gaussian":
            matrix += torch.diag(1 - matrix.sum(-1))
        matrices.append(matrix)
    return torch.stack(matrices)


def random_matrices(size, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, size, size, generator=generator, dtype=torch.float64).softmax(-1)


def both(kind, betas="falling"):
    """A transition of the library, and its explicit matrices."""
    values = torch.tensor(BETA_ROWS[betas], dtype=torch.float64)
    if kind.startswith("own"):
        masks = kind == "own-mask"
        matrices = random_matrices(VOCAB + masks, len(values))
        return Own(matrices, masks=masks), matrices
    return TRANSITIONS[kind](VOCAB, values), explicit(kind, values.tolist())


def product(matrices, s, t):
    result = torch.eye(matrices.shape[-1], dtype=torch.float64)
    for index in range(s, t):
        result = result @ matrices[index]
    return result


class TimedTable(nn.Module, Network):
    """Logits looked up by step and state."""

    def __init__(self, logits):
        super().__init__()
        self.table = nn.Parameter(logits)
        self.config = TableConfig(length=logits.shape[2])

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        step = torch.round(scalar.double() / TIME_SCALE * (len(self.table) - 1)).long()
        return self.table[step, state_index(tokens)][queries.rows, queries.positions]


def timed_logits(steps, length, seed=0):
    """A table for every step; the one of step 0 is never queried."""
    return torch.stack([random_logits(length, 100 * seed + step) for step in range(steps + 1)])


def states_of(size, length):
    return torch.tensor(list(itertools.product(range(size), repeat=length)))


def naive_step(logits, matrices, s, t, last_step="posterior"):
    """p(z_s | z_t) over all states: equation 4 with explicit matrices."""
    size, length = matrices.shape[-1], logits.shape[2]
    states = states_of(size, length)
    mean = torch.zeros(len(states), length, size, dtype=torch.float64)
    mean[..., :VOCAB] = logits[t, state_index(states)].softmax(-1)
    back = product(matrices, s, t).T[states]
    joint = back * (mean @ product(matrices, 0, s))
    one = joint / joint.sum(-1, keepdim=True)
    if last_step == "prediction" and (s, t) == (0, 1):
        one = mean
    return torch.stack([one[:, l][:, states[:, l]] for l in range(length)]).prod(0)  # noqa: E741


def naive_law(logits, matrices, grid, last_step="posterior"):
    """The distribution of samples that start from the mean of q(z_T | x) over the tokens."""
    size, length = matrices.shape[-1], logits.shape[2]
    states = states_of(size, length)
    prior = product(matrices, 0, len(matrices))[:VOCAB].mean(0)
    law = prior[states].prod(-1)
    for t, s in itertools.pairwise(grid):
        step = naive_step(logits, matrices, s, t, last_step)
        law = law @ torch.where(law[:, None] > 0, step, 0)
    clean = (states < VOCAB).all(-1)
    assert float(law[~clean].sum()) == pytest.approx(0, abs=1e-15)
    return law[clean]
