"""What a callback sees: every step, each position when it is revealed, the samples at last."""

from __future__ import annotations

import pytest
import torch

from partita.methods import METHODS
from partita.networks import TransformerOptions
from partita.samplers import Prompt, sample

LENGTH, VOCAB = 6, 5
CASES = [
    ("mdlm", {}, "ancestral", True),
    ("mdlm", {}, "first-hitting", True),
    ("pgm", {}, "halton", True),
    ("maskgit", {}, "confidence", True),
    ("ar", {}, "autoregressive", True),
    ("d3pm", {"steps": 20}, "reverse", False),
    ("genmd4", {}, "reverse", False),
    ("sedd", {}, "analytic", True),
    ("sedd", {"graph": "uniform"}, "tau-leaping", False),
    ("ddpm", {"steps": 20}, "ddpm", False),
    ("ddpm", {"steps": 20}, "ddim", False),
]


@pytest.mark.parametrize(("method", "options", "sampler", "settled"), CASES)
@pytest.mark.parametrize("known", [0, 2])
def test_steps(method, options, sampler, settled, known):
    """The first tokens may be known; what changes until the last step is said not to be settled."""
    torch.manual_seed(0)
    sizes = TransformerOptions(length=LENGTH, width=8, depth=1, heads=2)
    model = METHODS[method].build(sizes, VOCAB, **options)
    positions = torch.arange(LENGTH).expand(2, -1)
    prompt = Prompt(positions % VOCAB, positions < known)
    steps = {} if sampler in ("first-hitting", "autoregressive", "ddpm") else {"steps": 4}
    seen = []
    drawn = sample(model, prompt=prompt, sampler=sampler, callback=seen.append, **steps)
    assert [step.index for step in seen] == list(range(len(seen)))
    assert {step.total for step in seen} == {len(seen)}
    assert {step.state.settled for step in seen[:-1]} == {settled}
    where = torch.cat([torch.stack([step.rows, step.positions], -1) for step in seen])
    assert sorted(where.tolist()) == (~prompt.known).nonzero().tolist()
    assert torch.equal(seen[-1].state.tokens, drawn)
    assert bool(seen[-1].state.revealed.all())
    for step in seen:
        assert torch.equal(step.state.tokens[prompt.known], prompt.tokens[prompt.known])
