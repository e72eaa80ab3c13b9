"""The kinds of network that a recipe can name for methods that read masked or noisy tokens."""

from __future__ import annotations

from partita.networks.options import TransformerConfig
from partita.networks.patches import PatchTransformer
from partita.networks.pixel_unet import PixelUNet
from partita.networks.pixels import PixelTrunk
from partita.networks.transformer import Transformer
from partita.registry import Registry

KINDS: Registry[type[Transformer] | type[PixelTrunk]] = Registry("network.kind")
"""Networks that are called as `Transformer` is."""

for _network in (Transformer, PixelUNet, PatchTransformer):
    KINDS.register(_network.kind)(_network)


def make_network(config: TransformerConfig) -> Transformer | PixelTrunk:
    """A new network of the kind that the config names."""
    return KINDS[config.kind](config)
