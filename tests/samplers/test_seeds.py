"""What a seed draws stays what it is: the order, and the tokens of a model that is indifferent.

With equal logits the token of a number u is floor(3 u), so that these depend on addresses alone.
"""

from __future__ import annotations

import pytest
import torch

from partita.methods import AR
from partita.networks import CausalTransformer, TransformerConfig
from partita.samplers import sample
from tests.laws.tables import VOCAB, table_mdlm

LENGTH, SEED = 6, 11
SAME = ("022020", "002110")  # a planned position is drawn once, with noise of its own
MASKED = [
    ("ancestral", {"steps": 4}, (4, "312202", "311111", *SAME)),
    (
        "ancestral",
        {"steps": 4, "schedule": "cosine", "grid": "cosine"},
        (4, "323323", "322232", *SAME),
    ),
    ("first-hitting", {}, (6, "512403", "532041", *SAME)),
    ("ordered", {"steps": 3}, (3, "201201", "211020", *SAME)),
    ("ordered", {"steps": 3, "order": "left-to-right"}, (3, "001122", "001122", *SAME)),
    ("ordered", {"steps": 3, "order": "strided"}, (3, "012012", "012012", *SAME)),
    ("ordered", {"steps": 6, "order": [3, 1, 5, 0, 2, 4]}, (6, "314052", "314052", *SAME)),
    ("halton", {"steps": 4, "columns": 2}, (4, "210323", "210323", *SAME)),
    ("halton", {"steps": 6, "columns": 3, "roll": True}, (6, "420153", "315042", *SAME)),
    ("confidence", {"steps": 3}, (3, "011222", "011222", "000211", "022101")),
    (
        "confidence",
        {"steps": 6, "noise_temperature": 2.0},
        (6, "410523", "453102", "102010", "100211"),
    ),
    (
        "confidence",
        {"steps": 6, "confidence": "random", "counts": "linear"},
        (6, "410523", "453102", "102010", "100211"),
    ),
    ("threshold", {}, (None, "012345", "012345", "000201", "021120")),
    (
        "blocks",
        {"block_length": 3, "steps": 3, "noise_temperature": 2.0},
        (None, "012435", "201435", "101122", "100001"),
    ),
]


def story(model, name, options):
    """How many steps there are, which one reveals each position of two samples, their tokens."""
    when = torch.full((2, LENGTH), -1)
    seen = []

    def see(step):
        assert step.index == len(seen)
        seen.append(step.total)
        when[step.rows, step.positions] = step.index

    tokens = sample(model, 2, seed=SEED, sampler=name, callback=see, **options)
    texts = ["".join(map(str, row)) for row in (*when.tolist(), *tokens.tolist())]
    assert {*seen} in ({None}, {len(seen)})
    return seen[0], *texts


@pytest.mark.parametrize(("name", "options", "expected"), MASKED)
def test_masked(name, options, expected):
    model = table_mdlm(torch.zeros((VOCAB + 1) ** LENGTH, LENGTH, VOCAB, dtype=torch.float64))
    assert story(model, name, options) == expected


def test_causal():
    config = TransformerConfig(vocab_size=VOCAB + 1, length=LENGTH, width=4, depth=1, heads=1)
    network = CausalTransformer(config)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    expected = (6, "012345", "012345", *SAME)
    assert story(AR(network), "autoregressive", {}) == expected
