"""Captured programs: the tokens and the steps of the plain loop, for every model that has one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from partita.execution.choice import executor_of, sample
from partita.execution.program import Program
from partita.networks import attention
from partita.randomness import Noise
from partita.samplers import SAMPLERS, Prompt
from partita.samplers.base import SamplingContext
from partita.samplers.state import SamplerState
from tests.support.captured import CLASSES, LENGTH, MODELS, ROWS, VOCAB, build, same

PLANS = {
    "few steps": {"steps": 5},
    "more steps than positions": {"steps": 30},
    "a cosine grid": {"steps": 6, "grid": "cosine"},
    "another schedule": {"steps": 6, "schedule": "polynomial"},
    "first-hitting": {"sampler": "first-hitting"},
    "ordered": {"sampler": "ordered", "steps": 5},
    "left to right": {"sampler": "ordered", "order": "left-to-right"},
    "strided": {"sampler": "ordered", "order": "strided", "steps": 3},
    "halton": {"sampler": "halton", "steps": 4, "columns": 4, "roll": True},
    "blocks": {"sampler": "blocks", "inner": "ancestral", "block_length": 5, "steps": 3},
}
every_model = pytest.mark.parametrize("name", MODELS)
every_plan = pytest.mark.parametrize("plan", PLANS)


def prompt():
    """Rows that know different tokens; one knows all, another none."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB, (ROWS, LENGTH), generator=generator)
    known = torch.rand(ROWS, LENGTH, generator=generator) < 0.4
    known[1], known[2] = True, False
    return Prompt(tokens, known)


# The same tokens ---------------------------------------------------------------------------------


@every_model
def test_every_model(name):
    model = build(name)
    assert int(same(model, seed=3, steps=5).max()) < VOCAB
    same(model.float(), seed=3, steps=5)


@every_plan
@pytest.mark.parametrize("name", ["md4", "pgm"])
def test_every_plan(name, plan):
    given = prompt()
    kept = same(build(name), prompt=given, seed=4, **PLANS[plan])
    assert torch.equal(kept[given.known], given.tokens[given.known])


@pytest.fixture
def fixed_sizes(monkeypatch):
    """As on a GPU: more slots than there are tokens, and attention of one shape."""

    def run(self, read, asked):
        sizes = self._rounded(read, asked)
        assert sizes.read >= read
        assert sizes.queried >= asked
        self._step(sizes)

    monkeypatch.setattr(Program, "run", run)
    monkeypatch.setattr(attention, "_attend_on_cpu", attention._attend_padded)


@pytest.mark.usefixtures("fixed_sizes")
@every_model
@pytest.mark.parametrize("plan", ["few steps", "first-hitting", "blocks"])
def test_steps_of_fixed_sizes(name, plan):
    same(build(name), prompt=prompt(), seed=5, **PLANS[plan])


@pytest.mark.parametrize("name", ["mdlm with registers", "md4 with classes", "pgm with registers"])
@pytest.mark.parametrize("ramp", ["constant", "linear"])
def test_guidance(name, ramp):
    model, labels = build(name), torch.arange(ROWS) % CLASSES
    options = {"label": labels, "guidance_schedule": ramp, "seed": 6, "steps": 5}
    pulled = same(model, guidance=1.5, prompt=prompt(), **options)
    assert not torch.equal(pulled, same(model, guidance=40.0, prompt=prompt(), **options))
    same(model, guidance=0.0, **options)


@pytest.mark.usefixtures("fixed_sizes")
@pytest.mark.parametrize("name", ["mdlm with registers", "md4 with classes", "pgm with registers"])
def test_guidance_in_fixed_sizes(name):
    options = {"label": 2, "guidance": 2.0, "guidance_schedule": "linear", "seed": 6, "steps": 5}
    same(build(name), prompt=prompt(), **options)
    same(build(name), **options)


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
@pytest.mark.parametrize(
    "decoding",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_k": 2},
        {"top_p": 0.5},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.8},
    ],
)
def test_decoding(name, decoding):
    model = build(name)
    assert not torch.equal(same(model, steps=4, **decoding), same(model, steps=4))


@pytest.mark.parametrize("name", ["mdlm with registers", "md4 with classes", "pgm with registers"])
def test_labels(name):
    """One for each row, one for all, and none at all."""
    model = build(name)
    drawn = [same(model, steps=4, label=label) for label in (torch.tensor([0, 2, 1, 0]), 1, None)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_beyond_the_model_s_length():
    same(build(), length=2 * LENGTH, **PLANS["blocks"])


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
@pytest.mark.parametrize("seed", range(6))
def test_what_stands_at_hidden_positions_does_not_matter(name, seed):
    """Nor is it changed where nobody wants it filled, and a mask is no token that is known."""
    model, outcomes = build(name), []
    for speed in ("eager", "cudagraph"):
        given = prompt()
        wanted = ~given.known & (torch.arange(LENGTH) < 7)
        given.tokens[given.known & (torch.arange(LENGTH) % 2 == 0)] = VOCAB
        state = SamplerState(given.tokens, given.known, wanted)
        context = SamplingContext(model, Noise.for_batch(seed, ROWS), executor=executor_of(speed))
        SAMPLERS["ancestral"].run(context, state, steps=4)
        outcomes.append(state)
    assert torch.equal(outcomes[0].tokens, outcomes[1].tokens)
    assert torch.equal(outcomes[0].revealed, outcomes[1].revealed)


def test_nothing_to_reveal():
    given = Prompt(torch.zeros(2, LENGTH).long(), torch.ones(2, LENGTH).bool())
    for plan in ("few steps", "first-hitting", "ordered"):
        assert not same(build(), 2, prompt=given, **PLANS[plan]).any()


# The same steps ----------------------------------------------------------------------------------


@every_plan
@pytest.mark.parametrize("name", ["md4", "pgm"])
def test_callbacks_see_the_same_steps(name, plan):
    """Those that reveal nothing too: whoever counts steps counts all of them."""
    model, seen = build(name), {"eager": [], "cudagraph": []}
    for speed, steps in seen.items():
        options = PLANS[plan] | {"callback": steps.append, "speed": speed}
        sample(model, prompt=prompt(), **options)
    assert len(seen["cudagraph"]) == len(seen["eager"]) > 1
    for ours, theirs in zip(seen["cudagraph"], seen["eager"], strict=True):
        assert (ours.index, ours.total) == (theirs.index, theirs.total)
        assert torch.equal(ours.rows, theirs.rows)
        assert torch.equal(ours.positions, theirs.positions)
        for part in ("tokens", "revealed", "wanted"):
            assert torch.equal(getattr(ours.state, part), getattr(theirs.state, part))


def test_every_step_is_reported():
    seen = []
    sample(build(), 1, steps=30, speed="cudagraph", callback=seen.append)
    assert [step.index for step in seen] == [*range(30)]
    assert any(step.rows.numel() == 0 for step in seen)


def test_a_callback_may_sample_from_the_same_model():
    model = build()
    alone, inside = sample(model, 2, steps=4, speed="eager"), []
    again = partial(sample, model, 2, steps=4, speed="cudagraph")
    again()  # there is a program now, which both could take
    drawn = again(callback=lambda _: inside.append(again(seed=1)))
    assert torch.equal(drawn, alone)
    assert all(torch.equal(x, sample(model, 2, steps=4, seed=1, speed="eager")) for x in inside)
