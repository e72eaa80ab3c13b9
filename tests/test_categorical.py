"""The categorical sampler against float64 inversion, on a vocabulary of 50,258 tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from partita.categorical import (
    Decoding,
    kept_by_top_k,
    kept_by_top_p,
    sample_categorical,
    weights,
)
from partita.errors import InputError
from partita.randomness import Noise, Purpose

VOCAB = 50_258


@pytest.fixture(scope="module")
def heavy_tail():
    """Zipf's law with exponent 1.1, shuffled: probabilities from 0.14 down to 9e-7."""
    generator = torch.Generator().manual_seed(0)
    logits = -1.1 * torch.log(torch.arange(1, VOCAB + 1, dtype=torch.float64))
    return logits[torch.randperm(VOCAB, generator=generator)].float()


def uniforms(count, seed=0):
    return Noise.for_batch(seed, count).uniform(Purpose.TOKEN, 0, torch.zeros(1, 1).long())[:, 0]


def float64_cdf(logits):
    p = np.exp(logits.double().numpy())
    return np.cumsum(p / p.sum())


def test_same_tokens_as_float64_inversion(heavy_tail):
    u = uniforms(1024)
    ours = sample_categorical(heavy_tail.expand(1024, -1), u)
    theirs = np.searchsorted(float64_cdf(heavy_tail), u.numpy(), side="right")
    assert np.array_equal(ours.numpy(), theirs)


def test_rare_tokens_own_their_whole_interval(heavy_tail):
    """A token of probability 1e-6 is drawn for every u in its interval, to 0.01 % of its width."""
    cdf = float64_cdf(heavy_tail)
    rare = heavy_tail.argsort()[:512]
    low = torch.from_numpy(cdf)[rare - 1] * (rare > 0)
    width = torch.from_numpy(cdf)[rare] - low
    assert float(width.max()) < 1.02e-6
    logits = heavy_tail.expand(len(rare), -1)
    for inside in (1e-4, 0.5, 1 - 1e-4):
        assert torch.equal(sample_categorical(logits, low + inside * width), rare)
    for outside in (-1e-4, 1 + 1e-4):
        assert not bool((sample_categorical(logits, low + outside * width) == rare).any())


def test_frequencies_with_a_tail(heavy_tail):
    """Counts by size of probability; the first cell holds the tokens of 9e-7 to 2e-6."""
    draws, chunk = 8192, 512
    p = heavy_tail.double().softmax(0).numpy()
    cells = np.digitize(p, [2e-6, 1e-5, 1e-4, 1e-3, 1e-2])
    observed = np.zeros(6)
    for start in range(0, draws, chunk):
        u = uniforms(draws, seed=1)[start : start + chunk]
        tokens = sample_categorical(heavy_tail.expand(chunk, -1), u)
        observed += np.bincount(cells[tokens.numpy()], minlength=6)
    expected = np.array([p[cells == cell].sum() for cell in range(6)]) * draws
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_upcast_before_anything_else(heavy_tail, dtype):
    half, u = heavy_tail.to(dtype).expand(256, -1), uniforms(256, seed=2)
    assert torch.equal(sample_categorical(half, u), sample_categorical(half.double(), u))


def test_edges_of_the_unit_interval():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).expand(3, -1)
    u = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert sample_categorical(logits, u).tolist() == [1, 2, 2]


def test_temperature_zero_is_argmax():
    logits = torch.tensor([[0.1, 3.0, -1.0]])
    assert sample_categorical(logits, uniforms(1), Decoding(temperature=0)).tolist() == [1]


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        (Decoding(), [0.5, 0.25, 0.125, 0.125]),
        (Decoding(temperature=0.5), [0.25, 0.0625, 0.015625, 0.015625]),
        (Decoding(top_k=2), [0.5, 0.25, 0, 0]),
        (Decoding(top_k=3), [0.5, 0.25, 0.125, 0.125]),  # a tie with the third stays
        (Decoding(top_p=0.5), [0.5, 0, 0, 0]),
        (Decoding(top_p=0.51), [0.5, 0.25, 0, 0]),
        (Decoding(top_p=1.0), [0.5, 0.25, 0.125, 0.125]),
        (Decoding(top_k=2, top_p=0.6), [0.5, 0, 0, 0]),  # top-p of what top-k left
    ],
)
def test_filters(decoding, expected):
    probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64)
    truth = torch.tensor([expected], dtype=torch.float64)
    ours = weights(probs.log(), decoding)
    torch.testing.assert_close(ours / ours.sum(), truth / truth.sum())


def test_filters_keep_everything_when_asked_to():
    probs = torch.rand(3, 10)
    assert bool(kept_by_top_k(probs, 10).all())
    assert bool(kept_by_top_p(probs, 1.0).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_refused(bad, temperature):
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    with pytest.raises(InputError, match=r"logits: row 1"):
        sample_categorical(logits, uniforms(3), Decoding(temperature))


def test_a_row_without_possible_tokens_is_refused():
    with pytest.raises(InputError, match="no possible token"):
        sample_categorical(torch.full((1, 4), -torch.inf), uniforms(1))
