"""Confidence samplers do what they say at every step, recomputed from the definition."""

from __future__ import annotations

import pytest
import torch

from partita.randomness import Noise, Purpose
from partita.samplers import sample, sample_categorical
from partita.samplers.confidence import CONFIDENCES
from partita.samplers.counts import HIDDEN_SHARE, even_counts, reveal_counts
from tests.laws.tables import MASK, VOCAB, random_logits, table_mdlm

SEED, ROWS, LENGTH = 3, 5, 4


class Recorder:
    """Keeps a copy of the state before and after every step."""

    def __init__(self):
        self.before = [torch.full((ROWS, LENGTH), MASK)]
        self.kept = []

    def __call__(self, step):
        self.before.append(step.state.tokens.clone())
        kept = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
        kept[step.rows, step.positions] = True
        self.kept.append(kept)


def candidates(model, tokens, step):
    """Log-probabilities, the drawn candidate and where it may go, for every position."""
    hidden = tokens == MASK
    rows, positions = torch.ones_like(hidden).nonzero(as_tuple=True)
    log_probs = model.predict(tokens, ~hidden, rows, positions).detach()
    u = Noise.for_batch(SEED, ROWS).uniform_at(Purpose.TOKEN, step, rows, positions)
    drawn = sample_categorical(log_probs, u)
    return log_probs.reshape(ROWS, LENGTH, -1), drawn.reshape(ROWS, LENGTH), hidden


def score(name, log_probs, token):
    """One position's confidence, from its definition, in plain Python."""
    p = log_probs.double().exp().tolist()[:VOCAB]
    if name == "probability":
        return p[token]
    ranked = sorted(p, reverse=True)
    if name == "margin":
        return ranked[0] - ranked[1]
    return sum(q * torch.log(torch.tensor(q, dtype=torch.float64)).item() for q in p)


@pytest.mark.parametrize("name", ["probability", "margin", "entropy"])
@pytest.mark.parametrize("counts", list(HIDDEN_SHARE))
def test_each_step_keeps_the_most_confident(name, counts):
    model, recorder, steps = table_mdlm(random_logits(LENGTH)), Recorder(), 3
    options = {"steps": steps, "counts": counts, "confidence": name}
    sample(model, ROWS, sampler="confidence", seed=SEED, callback=recorder, **options)
    plan = reveal_counts(torch.full((ROWS,), LENGTH), steps, counts)
    for step in range(steps):
        tokens = recorder.before[step]
        log_probs, drawn, hidden = candidates(model, tokens, step)
        for row in range(ROWS):
            places = [i for i in range(LENGTH) if hidden[row, i]]
            places.sort(key=lambda i, row=row: -score(name, log_probs[row, i], int(drawn[row, i])))
            keep = set(places[: int(plan[row, step])])
            assert keep == set(recorder.kept[step][row].nonzero()[:, 0].tolist())
            for i in range(LENGTH):
                expected = drawn[row, i] if i in keep else tokens[row, i]
                assert recorder.before[step + 1][row, i] == expected


@pytest.mark.parametrize("threshold", [0.0, 0.6, 2.0])
def test_threshold_keeps_all_that_reach_it_and_at_least_one(threshold):
    model, recorder = table_mdlm(random_logits(LENGTH)), Recorder()
    sample(model, ROWS, sampler="threshold", seed=SEED, threshold=threshold, callback=recorder)
    for step, kept in enumerate(recorder.kept):
        log_probs, drawn, hidden = candidates(model, recorder.before[step], step)
        p = log_probs.double().exp().gather(-1, drawn[..., None])[..., 0]
        expected = hidden & (p >= threshold)
        best = p.masked_fill(~hidden, -1).argmax(-1)
        some = hidden.any(-1)
        expected[some, best[some]] = True
        assert torch.equal(kept, expected)
    # All at once when anything will do, one at a time when nothing does.
    assert len(recorder.kept) == {0.0: 1, 2.0: LENGTH}.get(threshold, len(recorder.kept))


def test_noise_reorders_and_cools_to_nothing():
    model = table_mdlm(random_logits(LENGTH))
    options = {"sampler": "confidence", "steps": 4, "counts": "linear", "seed": SEED}
    firsts = []
    for temperature in (0.0, 50.0):
        recorder = Recorder()
        sample(model, ROWS, noise_temperature=temperature, callback=recorder, **options)
        firsts.append(recorder.kept[0])
    assert not torch.equal(*firsts)
    many = []
    sample(
        model,
        4000,
        noise_temperature=1e6,
        callback=lambda step: many.append(step.positions),
        **options,
    )
    shares = torch.bincount(many[0], minlength=LENGTH) / 4000
    assert float((shares - 1 / LENGTH).abs().max()) < 0.03  # pure noise: every position alike


@pytest.mark.parametrize("rule", list(HIDDEN_SHARE))
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20])
def test_counts_sum_to_the_hidden_positions_and_never_stall(rule, steps):
    hidden = torch.tensor([0, 1, 5, 16, 1000])
    counts = reveal_counts(hidden, steps, rule)
    assert torch.equal(counts.sum(-1), hidden)
    assert int(counts.min()) >= 0
    for row, n in zip(counts, hidden.tolist(), strict=True):
        assert bool((row[: min(n, steps)] > 0).all())


def test_even_counts_give_the_remainder_to_the_first_steps():
    assert even_counts(torch.tensor([7, 3]), 5).tolist() == [[2, 2, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_every_confidence_is_registered_with_a_finite_value_on_impossible_tokens():
    log_probs = torch.tensor([[-0.1, -2.35, -torch.inf]])
    for name in CONFIDENCES:
        assert bool(torch.isfinite(CONFIDENCES[name](log_probs, torch.tensor([0]))).all())
