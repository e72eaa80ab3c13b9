"""Networks: tokens (and positions, groups, times, labels) to logits."""

from partita.contracts.layouts import Dense, Layout, Queries, Segments
from partita.networks.base import Network, PartitionNetwork
from partita.networks.causal import CausalTransformer
from partita.networks.kinds import KINDS, make_network
from partita.networks.options import DecoderOptions, TransformerConfig, TransformerOptions
from partita.networks.partition import PartitionTransformer
from partita.networks.patches import PatchTransformer
from partita.networks.pixel_unet import PixelUNet
from partita.networks.transformer import Transformer

__all__ = [
    "KINDS",
    "CausalTransformer",
    "DecoderOptions",
    "Dense",
    "Layout",
    "Network",
    "PartitionNetwork",
    "PartitionTransformer",
    "PatchTransformer",
    "PixelUNet",
    "Queries",
    "Segments",
    "Transformer",
    "TransformerConfig",
    "TransformerOptions",
    "make_network",
]
