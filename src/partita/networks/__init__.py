"""Networks: tokens (and positions, groups, times, labels) to logits."""

from partita.contracts.layouts import DenseLayout, Layout, PackedLayout, Queries
from partita.moved import offer_old_names
from partita.networks.base import CachingNetwork, Network, PartitionNetwork
from partita.networks.causal import CausalTransformer
from partita.networks.kind_options import KindOptions
from partita.networks.kinds import NETWORKS, make_network, new_network
from partita.networks.old_names import DecoderOptions as DecoderOptions  # for one version
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.networks.partition import PartitionTransformer
from partita.networks.patches import PatchTransformer
from partita.networks.pixel_unet import PixelUNet
from partita.networks.transformer import Transformer

__all__ = [
    "NETWORKS",
    "CachingNetwork",
    "CausalTransformer",
    "DenseLayout",
    "KindOptions",
    "Layout",
    "Network",
    "PackedLayout",
    "PartitionNetwork",
    "PartitionTransformer",
    "PatchTransformer",
    "PixelUNet",
    "Queries",
    "Transformer",
    "TransformerConfig",
    "TransformerOptions",
    "make_network",
    "new_network",
]

offer_old_names(__name__)
