"""A second partition network, next to nothing: the mean of the other group, and a position.

It is no part of the library, which needs to know nothing of it. Run as a module, this file is a
command line with one more method; without words it goes from training to an evaluation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

from partita.commands import main
from partita.contracts.layouts import DENSE, Queries
from partita.errors import require
from partita.methods.base import METHODS
from partita.methods.pgm import PGM
from partita.networks.base import PartitionNetwork
from partita.networks.options import TransformerConfig


class PooledNetwork(nn.Module, PartitionNetwork):
    """Logits of a token from the mean of what the other group holds."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.places = nn.Embedding(config.length, config.width)
        self.inner = nn.Linear(config.width, config.width)
        self.head = nn.Linear(config.width, config.outputs)

    def forward(self, tokens, revealed, *, queries, scalar=None, label=None, layout=DENSE):  # noqa: ARG002
        require(layout is DENSE, "layout", "rows are whole documents here")
        return self._logits(self._mean(tokens, revealed)[queries.rows], queries.positions)

    def both(self, tokens, groups, *, real=None, scalar=None, label=None, layout=DENSE):  # noqa: ARG002
        require(layout is DENSE, "layout", "rows are whole documents here")
        real = torch.ones_like(groups) if real is None else real
        rows, positions = real.nonzero(as_tuple=True)
        means = [self._mean(tokens, half & real)[rows] for half in (groups, ~groups)]
        other = torch.where(groups[rows, positions, None], means[1], means[0])
        return self._logits(other, positions), Queries(rows, positions)

    def _mean(self, tokens, seen):
        vectors = self.embed(tokens.where(seen, 0)) * seen[..., None]
        return vectors.sum(1) / seen.sum(1, keepdim=True).clamp(min=1)

    def _logits(self, vectors, positions):
        return self.head(torch.tanh(self.inner(vectors + self.places(positions))))


@METHODS.register("pgm-pooled")
class PooledPGM(PGM):
    """PGM, whatever the network."""

    @classmethod
    def build(cls, network, tokens, *, law=None, law_options=None):
        config = TransformerConfig(**vars(network), vocab_size=tokens)
        return cls(PooledNetwork(config), law=law, **(law_options or {}))


def journey(folder: Path) -> None:
    """Train, sample, fill in, score, evaluate and save."""
    (folder / "notes.txt").write_text("\n\n".join(f"note {n} is short" for n in range(60)))
    small = "--network.length 16 --network.width 16 --network.depth 1 --network.heads 1"
    for words in (
        f"train notes.txt --out run --method.name pgm-pooled {small} --training.steps 30",
        "sample run --sampler confidence --steps 4 --json",
        "sample run --steps 20 --json",
        "infill run note___short --json",
        "score run note",
        "eval run notes.txt --samples 0 --json",
        "export run model",
        "info model --json",
    ):
        print(json.dumps({"words": words}), flush=True)
        assert main(words.split()) == 0, words


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) > 1 else journey(Path.cwd()))
