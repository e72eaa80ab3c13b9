"""A second partition network, as somebody outside of the library writes one.

It reads each group with the other one masked: two passes of a transformer in place of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from partita.contracts.packed import places_of
from partita.errors import require_positive
from partita.networks import NETWORKS, KindOptions, PartitionNetwork, Transformer


@dataclass(frozen=True, kw_only=True)
class TwiceOptions(KindOptions):
    """What there is to choose about it."""

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
        queries = places_of(real, tokens)
        ways = (self(tokens, shown, queries=queries, **conditions) for shown in (groups, ~groups))
        from_one, from_zero = ways
        own = groups[queries.rows, queries.positions][:, None]
        return torch.where(own, from_zero, from_one), queries
