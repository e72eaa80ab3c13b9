"""Methods of one's own: what they lack is said at once, and small ones train, save and load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import partita
from partita.config.method import MethodOptions
from partita.errors import InputError
from partita.methods.base import METHODS
from partita.methods.contracts import Denoiser, TextMethod
from partita.networks.options import TransformerOptions

SIZES = TransformerOptions(length=4, width=32, depth=1, heads=2)
UNIGRAM = '''"""A method without a network: one probability for every token."""
import sys

import torch
from torch import nn

from partita.commands import main
from partita.contracts.loss import Loss
from partita.methods.base import METHODS
from partita.methods.contracts import Denoiser, TextMethod
from partita.schedules import make_schedule


@METHODS.register("unigram")
class Unigram(nn.Module, TextMethod, Denoiser):
    """Tokens that know nothing of each other."""

    family, timed, schedule = "masked", False, make_schedule("linear")

    def __init__(self, length, tokens):
        super().__init__()
        self.length, self.mask_id, self.vocab_size = length, tokens, tokens + 1
        self.logits = nn.Parameter(torch.zeros(tokens))

    @classmethod
    def build(cls, network, tokens, *, scale=1.0):
        return cls(network.length, tokens)

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):
        return self.logits.log_softmax(-1).expand(len(rows), -1)

    def loss(self, batch, noise, step=0):
        real = batch.real
        nats = torch.where(real, -self.logits.log_softmax(-1)[batch.tokens], 0)
        return Loss(nats.sum() / real.sum(), nats, nats, real, real.sum())


if __name__ == "__main__":
    sys.exit(main())
'''


@pytest.fixture
def unigram(tmp_path):
    """A folder with a text and a file that has a method."""
    (tmp_path / "unigram.py").write_text(UNIGRAM)
    (tmp_path / "notes.txt").write_text("\n\n".join(f"note {n} is short" for n in range(40)))

    def run(*words, code=0):
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_a_method_without_a_network_trains_and_loads(unigram):
    words = ["unigram.py", "train", "notes.txt", "--method.name", "unigram"]
    out = unigram(*words, "--training.steps", "5", "--network.length", "16").stdout
    assert "Try: python unigram.py sample runs/notes-unigram" in out  # Muon has nothing to do
    assert unigram("unigram.py", "sample", "runs/notes-unigram", "--json").stdout
    unigram("unigram.py", "score", "runs/notes-unigram", "note")
    described = unigram("unigram.py", "methods", "unigram").stdout
    assert "unigram.py" in described
    assert "method.options.scale" in described
    refused = unigram("-m", "partita", "sample", "runs/notes-unigram", code=2).stderr
    assert "its method 'unigram' is not in this library; " in refused
    assert "run the file that has it as the command line" in refused
    program = "import unigram, partita; print(partita.load('runs/notes-unigram').sample(1))"
    unigram("-c", program)


class Nothing:
    """No method at all."""


class Lonely:
    """A method whose samplers nobody has."""

    family = "lonely"

    def build(self): ...

    def loss(self): ...


class Structural(Lonely):
    """A method that has the members, but does not say so by its base classes."""

    family = "masked"


class Half(Structural, TextMethod, Denoiser):
    """A method that forgot its predictions."""


LACKING = {
    "has no build": Nothing,
    "unknown family 'lonely'; known": Lonely,
    "is no TextMethod, .*; derive it from partita.methods.contracts.TextMethod": Structural,
    "has no predict": Half,
}


@pytest.mark.parametrize(("message", "kind"), LACKING.items())
def test_what_a_method_lacks_is_said_when_it_is_registered(message, kind):
    with pytest.raises(InputError, match=message):
        METHODS.register("new")(kind)
    assert "new" not in METHODS


def test_nothing_is_an_empty_set_of_options(unigram, tmp_path):
    recipe = (
        "method: {name: sedd, options: null, schedule_options: null, corruption_options: null}\n"
    )
    (tmp_path / "null.yaml").write_text(recipe)
    unigram("-m", "partita", "train", "notes.txt", "--config", "null.yaml", "--print_config")


def test_values_of_nested_flags_are_numbers():
    chosen = {"betas": "linear", "steps": 4, "betas_options": {"end": "0.5", "start": "0.1"}}
    method = MethodOptions(name="d3pm", options=chosen).build(SIZES, 5)
    kept, _ = method.transition.kept(torch.tensor([3]), torch.tensor([4]))
    assert float(kept) == pytest.approx(0.5)


def test_a_chain_takes_no_more_steps_than_it_has():
    chain = METHODS["d3pm"].build(SIZES, 5, steps=3)
    seen = []
    partita.sample(chain, 1, callback=lambda step: seen.append(step.total))
    assert seen == [3, 3, 3]
