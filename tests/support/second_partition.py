"""A second partition network, as a user of the library would write one.

It reads each group with the other one masked: two passes of a transformer instead of one. Run as a
module, this file is a command line with one more kind of network; without arguments it does
everything from training to evaluation.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from partita.commands import main
from partita.contracts.packed import indices_of
from partita.errors import require_positive
from partita.networks import NETWORKS, KindOptions, PartitionNetwork, Transformer


@dataclass(frozen=True, kw_only=True)
class TwiceOptions(KindOptions):
    """Its options."""

    softness: float = 1.0
    """What its logits are divided by."""

    def __post_init__(self) -> None:
        require_positive(self.softness, "network.options.softness")


@NETWORKS.register("twice", reads="groups", options=TwiceOptions)
class Twice(nn.Module, PartitionNetwork):
    """Two passes over the tokens, each with one group hidden."""

    def __init__(self, config):
        super().__init__()
        self.config, self.options = config, TwiceOptions.of(config)
        tokens = config.vocab_size
        sizes = {"vocab_size": tokens + 1, "output_size": tokens}
        self.reader = Transformer(replace(config, kind=None, options={}, **sizes))

    def forward(self, tokens, revealed, *, queries, **conditions):
        masked = tokens.where(revealed, self.config.vocab_size)
        return self.reader(masked, queries=queries, **conditions) / self.options.softness

    def both(self, tokens, groups, *, real=None, **conditions):
        queries = indices_of(real, tokens)
        ways = (self(tokens, shown, queries=queries, **conditions) for shown in (groups, ~groups))
        from_one, from_zero = ways
        own = groups[queries.rows, queries.positions][:, None]
        return torch.where(own, from_zero, from_one), queries


def journey(folder: Path) -> None:
    """Train, sample, fill in, score, evaluate and save."""
    (folder / "notes.txt").write_text("\n\n".join(f"note {n} is short" for n in range(60)))
    small = "--network.length 16 --network.width 16 --network.depth 1 --network.heads 1"
    kind = "--method.name pgm --network.kind twice"
    for words in (
        f"train notes.txt --out run {kind} {small} --training.steps 30",
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
