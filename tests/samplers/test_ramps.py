"""Guidance by small weights, and its shares for the shortest texts, of one token and of two."""

from __future__ import annotations

import pytest
import torch

from partita.methods import METHODS
from partita.networks import TransformerOptions
from partita.samplers import guided

CLASSES, VOCAB, WEIGHT = 2, 4, 3.0


def build(name, length, **options):
    torch.manual_seed(1)
    sizes = TransformerOptions(length=length, width=8, depth=1, heads=2, classes=CLASSES)
    model = METHODS[name].build(sizes, VOCAB, **options)
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


@torch.no_grad()
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("graph", ["uniform", "absorbing"])
def test_scores_are_mixed_by_any_weight(graph, weight):
    """Those of masks keep their sum; the entry of the mask itself is no token's."""
    model = build("sedd", 3, graph=graph)
    label, none = torch.tensor([1]), torch.tensor([CLASSES])
    tokens = torch.full((1, 3), VOCAB if graph == "absorbing" else 2)
    rows, positions = torch.ones_like(tokens).nonzero(as_tuple=True)

    def ask(model, label):
        time = torch.tensor([0.4], dtype=torch.float64)
        return model.log_score(tokens, time, rows, positions, label)[:, :VOCAB]

    known, nothing, found = ask(model, label), ask(model, none), ask(guided(model, weight), label)
    expected = (1 + weight) * known - weight * nothing
    if graph == "absorbing":
        expected = expected.log_softmax(-1) + known.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(found, expected)
    assert weight == 0 or float((found - known).abs().max()) > 0.01


@torch.no_grad()
def test_predictions_are_mixed_by_a_weight_of_one():
    model = build("ar", 2)
    label, none = torch.tensor([1]), torch.tensor([CLASSES])
    known, nothing = (causal(model, [VOCAB], kind)[0] for kind in (label, none))
    found = causal(guided(model, 1.0), [VOCAB], label)[0]
    torch.testing.assert_close(found, mixed(known, nothing, 1.0))
    assert float((found - known).abs().max()) > 0.01
