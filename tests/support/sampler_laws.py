"""Distributions of samplers, by enumeration."""

from __future__ import annotations

import torch

from tests.laws.tables import MASK, VOCAB, all_sequences


def prediction(model, visible):
    """p(x_l | visible) for a dict of position -> token: one distribution per position."""
    length = model.length
    tokens = torch.tensor([[visible.get(i, MASK) for i in range(length)]])
    everywhere = torch.arange(length)
    log_probs = model.predict(tokens, tokens != MASK, torch.zeros_like(everywhere), everywhere)
    return log_probs.detach().exp()[:, :VOCAB]


def law_of_groups(model, groups, start=None):
    """The distribution when groups of positions are revealed one after the other."""
    known = {}  # predictions by what is visible
    law = torch.zeros(VOCAB**model.length, dtype=torch.float64)
    for index, x in enumerate(all_sequences(model.length).tolist()):
        visible, probability = dict(start or {}), 1.0
        if any(x[position] != token for position, token in visible.items()):
            continue
        for group in groups:
            key = tuple(sorted(visible.items()))
            if key not in known:
                known[key] = prediction(model, visible)
            p = known[key]
            probability *= float(torch.stack([p[i, x[i]] for i in group]).prod())
            visible.update({i: x[i] for i in group})
        law[index] = probability
    return law


def uniform_mixture(model, orders, sizes, start=None):
    """The mean distribution over equally likely orders, cut into groups of the given sizes."""
    laws = []
    for order in orders:
        positions = iter(order)
        groups = [[next(positions) for _ in range(size)] for size in sizes]
        laws.append(law_of_groups(model, groups, start))
    return torch.stack(laws).mean(0)
