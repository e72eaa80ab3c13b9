"""The shares of guidance for the shortest texts: of one token and of two."""

from __future__ import annotations

import pytest
import torch

from partita.methods import METHODS
from partita.networks import TransformerOptions
from partita.samplers import guided

CLASSES, VOCAB, WEIGHT = 2, 4, 3.0


def build(name, length):
    torch.manual_seed(1)
    sizes = TransformerOptions(length=length, width=8, depth=1, heads=2, classes=CLASSES)
    model = METHODS[name].build(sizes, VOCAB)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def mixed(known, nothing, weight):
    return ((1 + weight) * known - weight * nothing).log_softmax(-1)


@torch.no_grad()
def causal(model, read, label):
    caches = model.new_caches(1)
    return [model.following(torch.tensor([[n]]), caches, label)[:, :VOCAB] for n in read]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_linear_ramp_of_a_causal_model(length):
    """It ends with the full weight at the last token."""
    model, read = build("ar", length), [VOCAB, 0, 2][:length]
    label, none = torch.tensor([1]), torch.tensor([CLASSES])
    found = causal(guided(model, WEIGHT, "linear"), read, label)
    both = zip(causal(model, read, label), causal(model, read, none), strict=True)
    for position, (known, nothing) in enumerate(both):
        weight = WEIGHT * position / max(1, length - 1)
        torch.testing.assert_close(found[position], mixed(known, nothing, weight))


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_linear_ramp_of_a_masked_model(length):
    model = build("mdlm", length)
    label, none = torch.tensor([1]), torch.tensor([CLASSES])
    for revealed in range(length):
        known = torch.arange(length)[None] < revealed
        tokens = torch.where(known, 1, model.mask_id)
        rows, positions = (~known).nonzero(as_tuple=True)

        def ask(model, label, asked=(tokens, known, rows, positions)):
            return model.predict(*asked, label=label)[:, :VOCAB]

        expected = mixed(
            ask(model, label), ask(model, none), WEIGHT * revealed / max(1, length - 1)
        )
        found = ask(guided(model, WEIGHT, "linear"), label)
        torch.testing.assert_close(found.log_softmax(-1), expected)
