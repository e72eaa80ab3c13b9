"""Which positions are the most confident: the leftmost of those that are equally so."""

from __future__ import annotations

import pytest
import torch

from partita.categorical import Decoding
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.confidence import above_threshold, confidence, gumbel, most_confident
from partita.samplers.state import SamplerState
from tests.laws.tables import MASK, VOCAB, table_mdlm


@pytest.mark.parametrize("length", [1, 16, 500])
def test_the_leftmost_of_equals(length):
    scores = (torch.arange(2 * length).view(2, length) % 3 == 0).double()
    eligible = torch.arange(length).expand(2, -1) % 7 != 1
    for count in {0, 1, length // 2, length}:
        chosen = most_confident(scores, eligible, torch.tensor([count, 1]))
        for row, most in enumerate((count, 1)):
            places = [n for n in range(length) if eligible[row, n]]
            places.sort(key=lambda n: (-float(scores[row, n]), n))
            assert sorted(places[:most]) == chosen[row].nonzero().flatten().tolist()


def test_a_threshold_is_reached_by_itself():
    scores = torch.tensor([[0.5, 0.9, 0.7, 0.7], [0.1, 0.2, 0.2, 0.9]], dtype=torch.float64)
    eligible = torch.tensor([[True, False, True, True], [True, True, True, False]])
    chosen = above_threshold(scores, eligible, 0.7)
    assert chosen.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert not above_threshold(scores, torch.zeros_like(eligible), 0.7).any()


@pytest.mark.parametrize("steps", [4, 8])
@pytest.mark.parametrize("heat", [0.0, 3.0])
def test_noise_fades_from_the_first_step_to_the_last(steps, heat):
    """Ranks are those of log p + heat (1 - i / (S - 1)) Gumbel, one or two positions at a time."""
    logits = 2 * torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(4)).double()
    model = table_mdlm(logits.expand((VOCAB + 1) ** 8, -1, -1).clone())
    noise, seen = Noise.for_batch(3, 1), []
    context = SamplingContext(model, noise, Decoding(temperature=0.0), callback=seen.append)
    options = {"steps": steps, "counts": "linear", "noise_temperature": heat}
    confidence(context, SamplerState.blank(1, 8, MASK), **options)
    left = {*range(8)}
    for i, step in enumerate(seen):
        shaken = heat * (1 - i / (steps - 1)) * gumbel(context, SamplerState.blank(1, 8, MASK), i)
        ranks = logits.log_softmax(-1).max(-1).values + shaken[0]
        expected = sorted(left, key=lambda n, ranks=ranks: -float(ranks[n]))[: 8 // steps]
        assert sorted(step.positions.tolist()) == sorted(expected)
        left -= {*expected}
    assert not left
