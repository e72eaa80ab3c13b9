"""A sampler of one's own: what is wrong with it is said when it is registered or when it runs."""

# ruff: noqa: ARG005 - samplers that use nothing of what they are given

import pytest
import torch

import partita
from partita.errors import InputError
from partita.samplers.base import SAMPLERS, sampler
from partita.samplers.counts import even_counts
from partita.samplers.planned import order_ranks, reveal_in_order
from partita.samplers.state import SamplerState


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(SAMPLERS, "_entries", dict(SAMPLERS._entries))


def tiny():
    options = partita.TransformerOptions(length=20, width=8, depth=1, heads=1)
    return partita.MDLM.build(options, 3)


def test_a_family_is_known():
    with pytest.raises(InputError, match=r"unknown name 'maskd'; did you mean 'masked'"):
        sampler("own", family="maskd")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda context, state, steps=3: state.tokens, "takes context, state, steps before"),
        (lambda context: None, "takes context before its options"),
        (lambda context, state, *, steps: state.tokens, "option steps of 'own' has no default"),
        (lambda context, state, *, seed=1: state.tokens, "seed of 'own' has the name of an arg"),
    ],
)
def test_a_signature_that_cannot_work_is_refused(function, problem):
    with pytest.raises(InputError, match=problem):
        sampler("own", family="masked")(function)
    assert "own" not in SAMPLERS


def test_a_family_has_one_default():
    with pytest.raises(InputError, match=r"'own' cannot be the default of masked models"):
        sampler("own", family="masked", default=True)(lambda context, state: state.tokens)


def test_what_is_not_finished_is_refused():
    sampler("idle", family="masked")(lambda context, state: state.tokens)
    with pytest.raises(InputError, match=r"'idle' left 40 positions hidden; a sampler reveals"):
        partita.sample(tiny(), 2, sampler="idle")
    sampler("mute", family="masked")(lambda context, state: None)
    with pytest.raises(InputError, match=r"'mute' returned NoneType"):
        partita.sample(tiny(), 2, sampler="mute")


@pytest.mark.parametrize("length", [5, 16, 17, 40, 64])
def test_of_equal_keys_the_leftmost_comes_first(length):
    """At any length, and whatever is known elsewhere."""
    seen = []

    @sampler("pairs", family="masked", planned=True)
    def pairs(context, state, *, steps=length):
        keys = (torch.arange(length) // 2).expand_as(state.tokens)
        counts = even_counts(state.remaining.sum(-1), steps)
        return reveal_in_order(context, state, keys, counts)

    def watch(step):
        seen.extend(step.positions.tolist())

    options = partita.TransformerOptions(length=length, width=8, depth=1, heads=1)
    model = partita.MDLM.build(options, 3)
    partita.sample(model, 1, sampler="pairs", callback=watch)
    assert seen == list(range(length))
    known = torch.arange(length)[None] == 1
    seen.clear()
    prompt = partita.Prompt(torch.zeros(1, length, dtype=torch.int64), known)
    partita.sample(model, sampler="pairs", callback=watch, prompt=prompt)
    assert seen == [n for n in range(length) if n != 1]


def test_ranks_skip_what_is_known():
    known = torch.tensor([[False, True, False, False]])
    state = SamplerState.from_prompt(partita.Prompt(torch.zeros(1, 4, dtype=torch.int64), known), 3)
    ranks = order_ranks(partita.Noise.for_batch(0, 1), state, "left-to-right")
    assert ranks[0, [0, 2, 3]].tolist() == [0, 1, 2]
