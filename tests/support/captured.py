"""Small models of every kind, for sampling with and without CUDA graphs."""

from __future__ import annotations

import torch

from partita.execution.choice import sample
from partita.methods import METHODS
from partita.networks.options import TransformerOptions

ROWS, LENGTH, VOCAB, CLASSES = 4, 12, 7, 3
RICH = {"registers": 2, "grid": 4, "classes": CLASSES}
MODELS = {
    "mdlm": ("mdlm", {}),
    "mdlm with registers": ("mdlm", RICH),
    "mdlm with learned positions": ("mdlm", {"options": {"positions": "learned"}}),
    "md4": ("md4", {}),
    "md4 with classes": ("md4", {"classes": CLASSES}),
    "maskgit": ("maskgit", {"grid": 4}),
    "mdlm-complementary": ("mdlm-complementary", {}),
    "pgm": ("pgm", {}),
    "pgm with registers": ("pgm", RICH),
    "pgm with learned queries": ("pgm", {"options": {"queries": "learned"}}),
}


def build(name="mdlm"):
    """A model in which every parameter is random, so that every branch has an effect."""
    method, options = MODELS[name]
    sizes = {"length": LENGTH, "width": 16, "depth": 2, "heads": 2}
    model = METHODS[method].build(TransformerOptions(**sizes | options), VOCAB)
    return randomise(model, seed=2).double().eval()


def randomise(model, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return model


def same(model, count=ROWS, **options):
    """Samples that do not depend on the speed."""
    plain, captured = (sample(model, count, speed=s, **options) for s in ("eager", "cudagraph"))
    assert torch.equal(plain, captured)
    return plain
