"""Bounds of masked models, by quadrature and enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from partita.contracts.batch import Batch
from partita.processes.corruption import Continuous, Corrupted, Discrete, Subset
from partita.schedules import SCHEDULES, make_schedule

EXACT = [name for name in SCHEDULES if ":" not in name]


def all_masks(length):
    return torch.tensor(list(itertools.product([False, True], repeat=length)))


def losses_at(method, x, times, weights):
    """The expected loss at each time, over all masks, by the library's loss."""
    masks, count = all_masks(x.numel()), len(times)
    every_mask = masks.repeat(count, 1)
    every_time = times.repeat_interleave(len(masks))
    every_weight = weights.repeat_interleave(len(masks))[:, None].expand(every_mask.shape)
    hidden = method.schedule.one_minus_alpha(every_time)[:, None]
    chance = torch.where(every_mask, hidden, 1 - hidden).prod(-1)
    loss = method.loss_given(
        Batch.of(x.expand(len(every_mask), -1), is_token=torch.ones_like(every_mask)),
        Corrupted(every_mask, every_weight, every_time),
    )
    return (chance * loss.per_sequence.double()).detach().reshape(count, -1).sum(-1)


def quadrature(nodes):
    """Times and weights: Gauss-Legendre over sqrt(t), as alpha' may behave like 1 / sqrt(t)."""
    points, shares = map(torch.from_numpy, np.polynomial.legendre.leggauss(nodes))
    roots = (points + 1) / 2
    return roots**2, shares * roots


def continuous_bound(method, x, nodes=240):
    """The continuous-time bound, integrated over t."""
    times, shares = quadrature(nodes)
    return float((shares * losses_at(method, x, times, method.schedule.weight(times))).sum())


def subset_bound(method, x):
    """The k-form, every subset enumerated: k uniform on 1..L, weight L/k."""
    masks = all_masks(x.numel())[1:]
    size = masks.sum(-1, keepdim=True).double()
    ways = masks.sum(-1).bincount()[masks.sum(-1)].double()
    corruption = Corrupted(masks, (x.numel() / size).expand(masks.shape), None)
    loss = method.loss_given(
        Batch.of(x.expand(len(masks), -1), is_token=torch.ones_like(masks)), corruption
    )
    return float((loss.per_sequence.double() / ways / x.numel()).sum().detach())


def discrete_bound(method, x, steps):
    times = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    weights = Discrete(method.schedule, steps).weights(times)
    return float(losses_at(method, x, times, weights).mean())


CORRUPTIONS = {
    "continuous": Continuous(make_schedule("cosine")),
    "discrete": Discrete(make_schedule("cosine"), 4),
    "subset": Subset(),
}
