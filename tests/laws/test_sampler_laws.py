"""The law of every exact sampler equals the enumerated one (chi-square, fixed seeds)."""

from __future__ import annotations

import itertools

import pytest
import torch

from partita.contracts.batch import Batch
from partita.likelihood.enumeration import exact_log_likelihood
from partita.methods import AR
from partita.networks import CausalTransformer, TransformerConfig
from partita.samplers import Prompt, sample
from partita.schedules import make_schedule, sampling_grid
from tests.laws.tables import (
    MASK,
    VOCAB,
    all_sequences,
    assert_law,
    chain_law,
    random_logits,
    table_md4,
    table_mdlm,
)
from tests.support.sampler_laws import law_of_groups, prediction, uniform_mixture

SAMPLES = 30_000


@pytest.mark.parametrize(
    ("schedule", "grid"),
    [("linear", "uniform"), ("cosine", "uniform"), ("linear", "cosine"), ("geometric", "uniform")],
)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_ancestral(schedule, grid, steps):
    model = table_mdlm(random_logits(3))
    law = chain_law(model, 3, sampling_grid(grid, steps), make_schedule(schedule))
    options = {"schedule": schedule, "grid": grid, "steps": steps}
    assert_law(sample(model, SAMPLES, sampler="ancestral", seed=steps, **options), law)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "geometric"])
def test_ancestral_of_a_model_that_reads_the_time(schedule):
    """Under another schedule than its own, a model is told the time of its own that fits."""
    model = table_md4(random_logits(2), drift=1.5, schedule="cosine")
    law = chain_law(model, 2, sampling_grid("uniform", 3), make_schedule(schedule))
    drawn = sample(model, SAMPLES, sampler="ancestral", schedule=schedule, steps=3, seed=2)
    assert_law(drawn, law)


def test_the_default_schedule_is_the_model_s_own():
    model = table_md4(random_logits(2), schedule="polynomial")
    own = sample(model, 50, steps=3, schedule="polynomial", seed=1)
    assert torch.equal(sample(model, 50, steps=3, seed=1), own)


def test_chain_law_agrees_with_the_dynamic_programme():
    """Two independent oracles: products of transition matrices, and sets of positions."""
    model, grid = table_mdlm(random_logits(2)), sampling_grid("uniform", 3)
    law = chain_law(model, 2, grid, make_schedule("cosine"))
    visible = make_schedule("cosine").alpha(grid)
    exact = [exact_log_likelihood(model, x, visible) for x in all_sequences(2)]
    torch.testing.assert_close(torch.tensor(exact, dtype=torch.float64).exp(), law)


@pytest.mark.parametrize("exponent", [20.0, 200.0])
def test_a_grid_on_which_alpha_rounds_to_1_before_the_last_time(exponent):
    """1 - alpha is 8^-20 at the last time but one, where everything is revealed already."""
    model, grid = table_mdlm(random_logits(2)), sampling_grid("uniform", 8)
    schedule = make_schedule("polynomial", exponent=exponent)
    visible = schedule.alpha(grid)
    assert float(visible[-2]) == 1
    exact = [exact_log_likelihood(model, x, visible) for x in all_sequences(2)]
    law = torch.tensor(exact, dtype=torch.float64).exp()
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=law.dtype))
    torch.testing.assert_close(law, chain_law(model, 2, grid, schedule))
    drawn = sample(model, SAMPLES, sampler="ancestral", schedule=schedule, steps=8, seed=1)
    assert_law(drawn, law)


def test_first_hitting():
    model = table_mdlm(random_logits(3))
    law = torch.tensor([exact_log_likelihood(model, x) for x in all_sequences(3)]).double().exp()
    assert_law(sample(model, SAMPLES, sampler="first-hitting", seed=1), law)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_first_hitting_is_the_limit_of_many_steps_when_the_model_reads_the_time(schedule):
    model = table_md4(random_logits(2), drift=1.5)
    law = chain_law(model, 2, sampling_grid("uniform", 800), make_schedule(schedule))
    drawn = sample(model, SAMPLES, sampler="first-hitting", seed=3)
    assert_law(drawn, law)


@pytest.mark.parametrize(("steps", "sizes"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1])])
def test_ordered_at_random(steps, sizes):
    model = table_mdlm(random_logits(3))
    law = uniform_mixture(model, itertools.permutations(range(3)), sizes)
    assert_law(sample(model, SAMPLES, sampler="ordered", steps=steps, seed=4), law)


@pytest.mark.parametrize(
    ("order", "positions"), [("left-to-right", [0, 1, 2]), (torch.tensor([2, 0, 1]), [2, 0, 1])]
)
def test_ordered_as_told(order, positions):
    model = table_mdlm(random_logits(3))
    law = uniform_mixture(model, [positions], [2, 1])
    assert_law(sample(model, SAMPLES, sampler="ordered", order=order, steps=2, seed=5), law)


def test_confidence_at_random_is_a_random_order():
    model = table_mdlm(random_logits(3))
    law = uniform_mixture(model, itertools.permutations(range(3)), [2, 1])
    options = {"confidence": "random", "counts": "linear", "steps": 2}
    assert_law(sample(model, SAMPLES, sampler="confidence", seed=6, **options), law)


@pytest.mark.parametrize("sampler", ["ancestral", "first-hitting", "ordered"])
def test_with_a_prompt_the_law_is_that_of_the_blanks(sampler):
    """The middle token is known: the others follow the same process around it."""
    model = table_mdlm(random_logits(3))
    options = {"steps": 2} if sampler != "first-hitting" else {}
    prompt = Prompt(torch.tensor([[MASK, 1, MASK]]), torch.tensor([[False, True, False]]))
    drawn = sample(model, SAMPLES, prompt=prompt, sampler=sampler, seed=7, **options)
    one_by_one = uniform_mixture(model, [(0, 2), (2, 0)], [1, 1], {1: 1})
    together = law_of_groups(model, [[0, 2]], {1: 1})
    law = {
        "ancestral": (one_by_one + together) / 2,  # both in the same half of the time: 1/2
        "first-hitting": one_by_one,
        "ordered": one_by_one,
    }[sampler]
    assert_law(drawn, law)


def test_blocks_inside_the_model_length_see_what_is_masked_after_them():
    model = table_mdlm(random_logits(3))
    law = law_of_groups(model, [[0], [1], [2]])
    drawn = sample(model, SAMPLES, sampler="blocks", block_length=1, inner="first-hitting", seed=8)
    assert_law(drawn, law)
    halves = uniform_mixture(model, [(0, 1, 2), (1, 0, 2)], [1, 1, 1])
    drawn = sample(model, SAMPLES, sampler="blocks", block_length=2, inner="first-hitting", seed=9)
    assert_law(drawn, halves)


def test_blocks_slide_beyond_the_model_length():
    """A model of length 2 writes 3 tokens: the third sees only the second."""
    model = table_mdlm(random_logits(2))
    law = []
    for a, b, c in all_sequences(3).tolist():
        first = prediction(model, {})[0, a] * prediction(model, {0: a})[1, b]
        law.append(first * prediction(model, {0: b})[1, c])
    options = {"block_length": 1, "inner": "first-hitting"}
    drawn = sample(model, SAMPLES, length=3, sampler="blocks", seed=10, **options)
    assert_law(drawn, torch.stack(law))


def test_autoregressive():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=VOCAB + 1, length=4, width=16, depth=2, heads=2)
    model = AR(CausalTransformer(config))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    law = (-model.loss(Batch.of(all_sequences(3))).per_sequence.detach().double()).exp()
    assert_law(sample(model, SAMPLES, length=3, seed=11), law / law.sum())
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    prompt = Prompt(torch.tensor([[1, 0, 0]]), torch.tensor([[True, False, False]]))
    given = torch.where(all_sequences(3)[:, 0] == 1, law, 0)
    assert_law(sample(model, SAMPLES, prompt=prompt, seed=12), given / given.sum())


@pytest.mark.parametrize(
    ("steps", "groups"), [(1, [[0, 1, 2]]), (2, [[0, 2], [1]]), (3, [[0], [1], [2]])]
)
def test_strided(steps, groups):
    """Every S-th position together: neighbours are drawn one after the other."""
    model = table_mdlm(random_logits(3))
    law = law_of_groups(model, groups)
    assert_law(sample(model, SAMPLES, sampler="ordered", order="strided", steps=steps, seed=5), law)


def test_strided_one_at_a_time_is_left_to_right_and_known_tokens_do_not_count():
    model = table_mdlm(random_logits(3))
    told = {"sampler": "ordered", "seed": 5}
    drawn = [sample(model, 50, order=order, **told) for order in ("strided", "left-to-right")]
    assert torch.equal(*drawn)
    prompt = Prompt(torch.tensor([[1, MASK, MASK]]), torch.tensor([[True, False, False]]))
    drawn = sample(model, SAMPLES, prompt=prompt, order="strided", steps=2, **told)
    assert_law(drawn, law_of_groups(model, [[1], [2]], {0: 1}))
