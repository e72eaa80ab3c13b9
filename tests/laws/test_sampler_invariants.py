"""What holds for every sampler: known tokens stay, masks never leave, noise has an address."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.samplers import SAMPLERS, Prompt, sample

LENGTH, VOCAB = 12, 7
MASKED = [name for name in SAMPLERS if SAMPLERS[name].family == "masked"]
OPTIONS = {
    "ancestral": {"steps": 5},
    "ordered": {"steps": 5},
    "confidence": {"steps": 5, "noise_temperature": 1.0},
    "blocks": {"block_length": 4, "steps": 2},
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=VOCAB + 1, length=LENGTH, width=16, depth=2, heads=2)
    method = MDLM(Transformer(config))
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return method


@pytest.mark.parametrize("name", MASKED)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_known_tokens_stay_and_no_mask_is_emitted(model, name, data):
    rows = data.draw(st.integers(1, 4))
    length = data.draw(st.integers(1, LENGTH))
    cells = rows * length
    known = torch.tensor(data.draw(st.lists(st.booleans(), min_size=cells, max_size=cells)))
    tokens = torch.tensor(
        data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=cells, max_size=cells))
    )
    prompt = Prompt(tokens.reshape(rows, length), known.reshape(rows, length))
    drawn = sample(model, prompt=prompt, sampler=name, seed=1, **OPTIONS.get(name, {}))
    assert torch.equal(drawn[prompt.known], prompt.tokens[prompt.known])
    assert int(drawn.max()) < VOCAB


@pytest.mark.parametrize("name", MASKED)
def test_a_sample_does_not_depend_on_its_batch(model, name):
    options = {"sampler": name, "seed": 5, **OPTIONS.get(name, {})}
    together = sample(model, 6, **options)
    alone = torch.cat([sample(model, 1, first=i, **options) for i in range(6)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, sample(model, 6, **{**options, "seed": 6}))


def test_padding_does_not_move_the_noise(model):
    """The jump times and token draws of a position are the same in a longer row."""
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    known = torch.zeros(2, LENGTH, dtype=torch.bool)
    known[:, 6:] = True
    order_of = {}
    for length in (6, LENGTH):
        steps = []
        prompt = Prompt(tokens[:, :length], known[:, :length])
        sample(
            model,
            prompt=prompt,
            sampler="first-hitting",
            seed=2,
            callback=lambda step, seen=steps: seen.append(step.positions.tolist()),
        )
        order_of[length] = steps
    assert order_of[6] == order_of[LENGTH]


def test_a_step_without_positions_asks_nothing(model):
    calls = []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    steps = []
    drawn = sample(model, 1, steps=500, seed=0, callback=steps.append)
    assert len(steps) == 500
    assert len(calls) <= LENGTH
    assert int(drawn.max()) < VOCAB


def test_rows_that_are_done_are_not_computed_again(model):
    sizes = []
    handle = model.network.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    prompt = Prompt(
        torch.zeros(2, LENGTH, dtype=torch.long),
        torch.stack([torch.arange(LENGTH) < LENGTH - 1, torch.zeros(LENGTH, dtype=torch.bool)]),
    )
    sample(model, prompt=prompt, sampler="first-hitting", seed=0)
    handle.remove()
    assert sizes == [2] + [1] * (LENGTH - 1)


def test_a_full_prompt_comes_back_as_it_is(model):
    tokens = torch.randint(0, VOCAB, (2, LENGTH))
    prompt = Prompt(tokens, torch.ones_like(tokens, dtype=torch.bool))
    for name in MASKED:
        drawn = sample(model, prompt=prompt, sampler=name, **OPTIONS.get(name, {}))
        assert torch.equal(drawn, tokens)


def test_sampling_leaves_the_model_in_its_mode_and_its_prompt_alone(model):
    model.train()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    prompt = Prompt(tokens, torch.zeros_like(tokens, dtype=torch.bool))
    sample(model, prompt=prompt, steps=2)
    assert model.training
    assert torch.equal(prompt.tokens, torch.zeros_like(tokens))
    assert not bool(prompt.known.any())


def test_fewer_steps_use_the_same_noise(model):
    """One token's draw is addressed by its position: at most the predictions change."""
    order = []
    for steps in (4, 64):
        seen = []
        sample(
            model, 1, steps=steps, seed=9, callback=lambda s, seen=seen: seen.append(s.positions)
        )
        order.append(torch.cat(seen))
    few, many = order
    assert sorted(few.tolist()) == sorted(many.tolist())
