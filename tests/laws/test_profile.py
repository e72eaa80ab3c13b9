"""The curve whose area is the bound: each level equals its enumeration, the area the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from partita.errors import InputError
from partita.likelihood.bounds import nelbo
from partita.likelihood.profile import draw_profiles, profile
from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from tests.laws.tables import random_logits, table_md4, table_mdlm

X = torch.tensor([0, 2, 1, 1])
ROWS = 4000


def hidden_nats(method, hidden, share=None):
    """The nats of all hidden tokens of X."""
    positions = torch.tensor(hidden)
    seen = torch.ones(1, len(X), dtype=torch.bool)
    seen[0, positions] = False
    time = None if share is None else method.schedule.inverse(torch.tensor([1 - share]).double())
    with torch.no_grad():
        answer = method.predict(X[None], seen, torch.zeros_like(positions), positions, time)
    return -answer.gather(1, X[positions][:, None]).double().sum()


def subsets(count):
    return list(itertools.combinations(range(len(X)), count))


def near(level, exact):
    return abs(level.cost.nats - float(exact)) < 5 * level.cost.nats_error + 1e-6


def test_a_level_is_the_mean_over_all_ways_to_hide_as_many():
    method = table_mdlm(random_logits(4, seed=3))
    found = profile(method, X.expand(ROWS, -1), levels=4, replicates=8, batch_size=ROWS)
    for count, level in enumerate(found, 1):
        ways = [hidden_nats(method, way) / count for way in subsets(count)]
        assert near(level, sum(ways) / len(ways))
        assert level.hidden_to == count / 4


def test_a_level_of_a_model_that_is_told_the_time():
    method = table_md4(random_logits(4, seed=3))
    found = profile(method, X.expand(ROWS, -1), levels=4, replicates=8, batch_size=ROWS)
    points, weights = np.polynomial.legendre.leggauss(12)
    for level in found:
        exact = 0.0
        for point, weight in zip(points, weights, strict=True):
            share = level.hidden_from + (point + 1) / 2 * (level.hidden_to - level.hidden_from)
            for way in (way for count in range(1, 5) for way in subsets(count)):
                chance = share ** len(way) * (1 - share) ** (4 - len(way))
                nats = hidden_nats(method, way, share)
                exact += weight / 2 * chance * float(nats) / (4 * share)
        assert near(level, exact)


@pytest.mark.parametrize("name", ["mdlm", "pgm", "md4", "mdlm-complementary", "maskgit"])
def test_the_area_is_the_bound(name):
    torch.manual_seed(0)
    method = METHODS[name].build(TransformerOptions(length=12, width=16, depth=2, heads=2), 7)
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    tokens = torch.randint(7, (128, 12))
    valid = torch.arange(12) < torch.randint(1, 13, (128, 1))
    bound = nelbo(method, tokens, is_token=valid, replicates=16, batch_size=128)
    found = profile(method, tokens, valid, levels=5, replicates=8, batch_size=128)
    area = sum(level.cost.nats for level in found) / 5
    error = sum(level.cost.nats_error**2 for level in found) ** 0.5 / 5
    assert abs(area - bound.nats) < 5 * (error**2 + bound.nats_error**2) ** 0.5


def test_the_picture(tmp_path):
    method = table_mdlm(random_logits(4, seed=3))
    levels = profile(method, X[None])
    draw_profiles({"one": levels, "two": levels}, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes()[:4] == b"\x89PNG"


def test_methods_without_such_a_curve():
    method = METHODS["ar"].build(TransformerOptions(length=4, width=16, depth=1, heads=2), 7)
    with pytest.raises(InputError, match="there is none of AR"):
        profile(method, X[None])
