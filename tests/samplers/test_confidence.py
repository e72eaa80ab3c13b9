"""Which positions are the most confident: the leftmost of those that are equally so."""

from __future__ import annotations

import pytest
import torch

from partita.samplers.confidence import above_threshold, most_confident


@pytest.mark.parametrize("length", [1, 16, 500])
def test_the_leftmost_of_equals(length):
    confidence = (torch.arange(2 * length).view(2, length) % 3 == 0).double()
    eligible = torch.arange(length).expand(2, -1) % 7 != 1
    for count in {0, 1, length // 2, length}:
        chosen = most_confident(confidence, eligible, torch.tensor([count, 1]))
        for row, most in enumerate((count, 1)):
            places = [n for n in range(length) if eligible[row, n]]
            places.sort(key=lambda n: (-float(confidence[row, n]), n))
            assert sorted(places[:most]) == chosen[row].nonzero().flatten().tolist()


def test_a_threshold_is_reached_by_itself():
    confidence = torch.tensor([[0.5, 0.9, 0.7, 0.7], [0.1, 0.2, 0.2, 0.9]], dtype=torch.float64)
    eligible = torch.tensor([[True, False, True, True], [True, True, True, False]])
    chosen = above_threshold(confidence, eligible, 0.7)
    assert chosen.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert not above_threshold(confidence, torch.zeros_like(eligible), 0.7).any()
