"""Classifier-free guidance: the formula, one pass for both predictions, any sampler."""

from __future__ import annotations

import pytest
import torch

from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.samplers import SAMPLERS, guided, sample
from partita.samplers.guidance import guide

LENGTH, VOCAB, CLASSES = 6, 5, 3


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=VOCAB + 1, length=LENGTH, width=16, depth=2, heads=2, classes=CLASSES
    )
    method = MDLM(Transformer(config))
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return method


def ask(model, label):
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    hidden = torch.zeros(2, LENGTH, dtype=torch.bool)
    hidden[:, 1:4] = True
    rows, positions = hidden.nonzero(as_tuple=True)
    return model.predict(tokens, ~hidden, rows, positions, label=label).detach()


def test_guided_prediction_is_the_formula(model):
    label, none = torch.tensor([0, 2]), torch.full((2,), CLASSES)
    weight = 1.7
    mixed = (1 + weight) * ask(model, label) - weight * ask(model, none)
    mixed[:, VOCAB] = -torch.inf
    torch.testing.assert_close(ask(guided(model, weight), label), mixed.log_softmax(-1))


def test_weight_zero_is_the_conditional_model(model):
    label = torch.tensor([1, 1])
    torch.testing.assert_close(ask(guided(model, 0.0), label), ask(model, label))


def test_both_predictions_come_from_one_pass(model):
    calls = []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    ask(guided(model, 2.0), torch.tensor([0, 1]))
    assert len(calls) == 1


def test_impossible_stays_impossible():
    conditional = torch.tensor([[-0.1, -torch.inf, -2.3]])
    unconditional = torch.tensor([[-0.7, -0.7, -torch.inf]])
    guided = guide(conditional, unconditional[:, [0, 0, 1]], 3.0)
    assert guided[0, 1] == -torch.inf
    torch.testing.assert_close(guided.exp().sum(), torch.tensor(1.0))


@pytest.mark.parametrize("name", [n for n in SAMPLERS if SAMPLERS[n].family == "masked"])
def test_every_sampler_takes_a_guided_model(model, name):
    options = {"block_length": 3} if name == "blocks" else {}
    drawn = sample(guided(model, 2.0), 3, label=1, sampler=name, **options)
    assert int(drawn.max()) < VOCAB
    rows = sample(guided(model, 2.0), 3, label=torch.tensor([1, 1, 1]), sampler=name, **options)
    assert torch.equal(drawn, rows)
