"""Networks: tokens (and positions, groups, times, labels) to logits."""

from partita.contracts.layouts import DenseLayout as DenseLayout
from partita.contracts.layouts import Layout as Layout
from partita.contracts.layouts import PackedLayout as PackedLayout
from partita.contracts.layouts import Queries as Queries
from partita.moved import offer_old_names
from partita.networks.base import CachingNetwork as CachingNetwork
from partita.networks.base import Network as Network
from partita.networks.base import PartitionNetwork as PartitionNetwork
from partita.networks.causal import CausalTransformer as CausalTransformer
from partita.networks.kind_options import KindOptions as KindOptions
from partita.networks.kinds import NETWORKS as NETWORKS
from partita.networks.kinds import make_network as make_network
from partita.networks.kinds import new_network as new_network
from partita.networks.old_names import DecoderOptions as DecoderOptions  # for one version
from partita.networks.options import TransformerConfig as TransformerConfig
from partita.networks.options import TransformerOptions as TransformerOptions
from partita.networks.partition import PartitionTransformer as PartitionTransformer
from partita.networks.patches import PatchTransformer as PatchTransformer
from partita.networks.pixel_unet import PixelUNet as PixelUNet
from partita.networks.transformer import Transformer as Transformer

offer_old_names(__name__)
