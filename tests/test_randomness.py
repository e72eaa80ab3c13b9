"""Addressed randomness: the generator's published vectors, uniformity, independence of batches."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from partita.errors import InputError
from partita.randomness import Noise, Purpose, philox

# Known answers published with the generator (Random123, philox4x32, 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
POSITIONS = torch.arange(400)[None]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    result = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in result) == words


def test_uniforms_are_uniform():
    u = Noise.for_batch(1, 500).uniform(Purpose.TOKEN, 0, POSITIONS).flatten().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3


def test_addresses_are_independent():
    """Neighbouring samples, steps, positions, purposes, streams and seeds do not correlate."""
    noise = Noise.for_batch(1, 500)
    base = noise.uniform(Purpose.TOKEN, 0, POSITIONS).flatten()
    others = [
        noise.uniform(Purpose.TOKEN, 1, POSITIONS),
        noise.uniform(Purpose.ORDER, 0, POSITIONS),
        noise.uniform(Purpose.TOKEN, 0, POSITIONS + 1),
        noise.fork(1).uniform(Purpose.TOKEN, 0, POSITIONS),
        Noise.for_batch(2, 500).uniform(Purpose.TOKEN, 0, POSITIONS),
        Noise.for_batch(1, 500, first=1).uniform(Purpose.TOKEN, 0, POSITIONS),
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([base, other.flatten()]))[0, 1])) < 0.01


def test_a_draw_has_an_address():
    noise = Noise.for_batch(7, 6)
    table = noise.uniform(Purpose.MASK, 3, POSITIONS)
    alone = Noise.for_batch(7, 1, first=4).uniform(Purpose.MASK, 3, POSITIONS[:, 10:20])
    assert torch.equal(table[4:5, 10:20], alone)
    rows, positions = torch.tensor([5, 0, 2]), torch.tensor([399, 0, 7])
    assert torch.equal(noise.uniform_at(Purpose.MASK, 3, rows, positions), table[rows, positions])
    assert torch.equal(
        noise.select(torch.tensor([3])).uniform(Purpose.MASK, 3, POSITIONS), table[3:4]
    )
    shared = noise.shared(Purpose.TIME, 2)
    assert shared == Noise.for_batch(7, 3, first=9).shared(Purpose.TIME, 2)


def test_steps_can_be_counted_from_a_number_in_memory():
    """What a replayed program draws at step 0 is what belongs to the step that is told there."""
    since = torch.tensor(0)
    counted = Noise(7, torch.arange(6), 1, since)
    for step, told in ((0, 5), (2**32 - 1, 1), (2, 3)):
        since.fill_(told)
        plain = Noise(7, torch.arange(6), 1).uniform(Purpose.MASK, step + told, POSITIONS)
        assert torch.equal(counted.uniform(Purpose.MASK, step, POSITIONS), plain)
    plain = Noise(7, torch.arange(6), 2).shared(Purpose.TIME, 5)
    assert torch.equal(counted.fork(2).shared(Purpose.TIME, 2), plain)  # 3 and 2


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_bad_seed(seed):
    with pytest.raises(InputError, match="seed"):
        Noise.for_batch(seed, 1)
