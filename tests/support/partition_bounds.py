"""Bounds of both groups of a partition, by enumeration."""

from __future__ import annotations

import torch

from partita.contracts.batch import Batch
from partita.processes.corruption import Continuous, Discrete, Subset, weighed
from partita.schedules import make_schedule
from tests.laws.tables import table_mdlm, table_pgm
from tests.support.bounds import all_masks, discrete_bound, subset_bound


def group_nats(method, tokens, partition, valid=None):
    """The nats of each group's bound alone: [2, rows], group 1 first.

    The loss is the mean of the two bounds, so each group enters it with half its weight.
    """
    loss = method.loss_of_groups(Batch.of(tokens, is_token=valid), partition)
    nats, groups = 2 * loss.per_token.detach(), partition.groups
    assert torch.equal(loss.counted, torch.ones_like(groups) if valid is None else valid)
    both = torch.stack([torch.where(groups, nats, 0).sum(-1), torch.where(groups, 0, nats).sum(-1)])
    torch.testing.assert_close(both.mean(0), loss.per_sequence.detach())
    return both


def expected_at(method, sequences, schedule, times, weights):
    """The expected nats of both groups at each time, over partitions: [2, times, sequences]."""
    partitions = all_masks(sequences.shape[1])
    shape = (len(times), len(sequences), len(partitions))
    groups = partitions.expand(*shape, -1).flatten(0, 2)
    tokens = sequences[None, :, None].expand(*shape, -1).flatten(0, 2)
    hidden, visible, *weights = (
        values[:, None, None].expand(shape).flatten()
        for values in (schedule.one_minus_alpha(times), schedule.alpha(times), *weights)
    )
    chance = torch.where(groups, hidden[:, None], visible[:, None]).prod(-1)
    nats = group_nats(method, tokens, weighed(groups, *weights, torch.ones_like(groups)))
    return (chance * nats).reshape(2, *shape).sum(-1)


def discrete_groups(method, sequences, schedule, steps):
    """The corruption "discrete" on its T + 1 points: the bound of each group, [2, sequences]."""
    index = torch.arange(steps + 1, dtype=torch.float64)
    weights = Discrete(schedule, steps).partition_weights(index)
    expected = expected_at(method, sequences, schedule, index / steps, weights)
    return (half_ends(steps)[:, None] * expected).sum(1)


def half_ends(count):
    """The probabilities of 0..n: equal, but half as large at both ends."""
    law = torch.full((count + 1,), 1 / count, dtype=torch.float64)
    law[[0, -1]] /= 2
    return law


def k_form(logits, sequences):
    """MDLM's bound of the same table, with the time integrated out."""
    method = table_mdlm(logits)
    return torch.tensor([subset_bound(method, x) for x in sequences], dtype=torch.float64)


CORRUPTIONS = {
    "continuous": Continuous(make_schedule("cosine")),
    "discrete": Discrete(make_schedule("cosine"), 4),
    "subset": Subset(),
}


def exact_bound(law, logits, x, groups):
    """The exact mean of an estimate with one or with both groups."""
    if law != "discrete":
        return float(k_form(logits, x[None])[0])
    if groups == 1:
        return discrete_bound(table_mdlm(logits, schedule="cosine"), x, 4)
    return float(discrete_groups(table_pgm(logits), x[None], make_schedule("cosine"), 4).mean())
