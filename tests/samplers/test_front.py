"""What `sample` leaves as it was: whether dropout is on."""

from __future__ import annotations

import pytest
import torch

from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.samplers import guided, sample


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weight", [None, 2.0])
def test_the_mode_of_a_model_stays(training, weight):
    config = TransformerConfig(vocab_size=5, length=4, width=8, depth=1, heads=1, classes=2)
    model = MDLM(Transformer(config)).train(training)
    modes = []
    model.network.register_forward_hook(lambda module, *_: modes.append(module.training))
    chosen = model if weight is None else guided(model, weight)
    sample(chosen, 2, steps=2, label=torch.tensor([0, 1]))
    assert model.training == training
    assert modes
    assert not any(modes)
