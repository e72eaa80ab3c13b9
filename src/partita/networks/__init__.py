"""Networks: tokens (and positions, times, labels) to logits."""

from partita.networks.attention import Dense, Layout, Segments
from partita.networks.base import Network, Queries
from partita.networks.causal import CausalTransformer
from partita.networks.transformer import Transformer, TransformerConfig, TransformerOptions

__all__ = [
    "CausalTransformer",
    "Dense",
    "Layout",
    "Network",
    "Queries",
    "Segments",
    "Transformer",
    "TransformerConfig",
    "TransformerOptions",
]
