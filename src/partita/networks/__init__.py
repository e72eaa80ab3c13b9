"""Networks: tokens (and positions, times, labels) to logits."""

from partita.networks.attention import Dense, Layout, Segments
from partita.networks.causal import CausalTransformer
from partita.networks.transformer import Queries, Transformer, TransformerConfig

__all__ = [
    "CausalTransformer",
    "Dense",
    "Layout",
    "Queries",
    "Segments",
    "Transformer",
    "TransformerConfig",
]
