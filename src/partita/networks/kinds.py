"""The kinds of network that `network.kind` can name, what each reads, and its options.

    @NETWORKS.register("mine", reads="groups", options=MyOptions)
    class Mine(nn.Module, PartitionNetwork):
        def __init__(self, config: TransformerConfig) -> None: ...

A method requires a network by what it reads: masked methods one that reads `tokens`, PGM one that
reads `groups`. The first kind registered for that is the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import nn

from partita.errors import InputError
from partita.networks.causal import CausalTransformer
from partita.networks.flexible import FlexibleTransformer
from partita.networks.kind_options import KindOptions
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.networks.partition import PartitionTransformer
from partita.networks.patches import PatchTransformer
from partita.networks.pixel_unet import PixelUNet
from partita.networks.pixels import PixelTrunk
from partita.networks.transformer import Transformer
from partita.networks.vectors import VectorTransformer
from partita.registry import Registry

READS = {
    "tokens": "noisy or masked tokens, on both sides of every one",
    "groups": "tokens and a partition of them, each group apart from the other",
    "past": "the tokens before the next one",
    "growing": "texts that grow",
    "vectors": "vectors in place of tokens",
}
"""What a network may read, with descriptions."""

N = TypeVar("N", bound=type[nn.Module])


@dataclass(frozen=True)
class Kind:
    """A kind of network."""

    network: Callable[..., nn.Module]
    """Its class, which is called with a `TransformerConfig`."""
    reads: str
    """What it reads: one of `READS`."""
    options: type[KindOptions]
    """The class of its `network.options`."""
    whole: bool = False
    """Whether it reads only sequences of its full length, such as whole images."""


class NetworkRegistry(Registry[Kind]):
    """Kinds of network by name."""

    def register(  # type: ignore[override]  # takes keyword arguments too
        self, name: str, *, reads: str, options: type[KindOptions] = KindOptions, **more: bool
    ) -> Callable[[N], N]:
        """Class decorator that registers a network."""
        if reads not in READS:
            raise InputError("reads", f"unknown name {reads!r}", f"known: {', '.join(READS)}")

        def add(network: N) -> N:
            self.add(name, Kind(network, reads, options, **more))
            network.kind = name  # type: ignore[attr-defined]
            return network

        return add

    def that_read(self, reads: str) -> list[str]:
        """The kinds that read this, the default first."""
        return [name for name, kind in self._entries.items() if kind.reads == reads]


NETWORKS = NetworkRegistry("network.kind")

for _name, _network, _reads in (
    ("transformer", Transformer, "tokens"),
    ("unet", PixelUNet, "tokens"),
    ("patches", PatchTransformer, "tokens"),
    ("partition", PartitionTransformer, "groups"),
    ("causal", CausalTransformer, "past"),
    ("flexible", FlexibleTransformer, "growing"),
    ("vectors", VectorTransformer, "vectors"),
):
    _whole = issubclass(_network, PixelTrunk)
    NETWORKS.register(_name, reads=_reads, options=_network.Options, whole=_whole)(_network)


def kind_of(network: TransformerOptions, reads: str) -> tuple[str, Kind]:
    """The name and kind of the network for these options; `reads` is what the method requires."""
    fitting = NETWORKS.that_read(reads)
    name = network.kind or fitting[0]
    kind = NETWORKS[name]
    if kind.reads != reads:
        problem = f"{name!r} reads {kind.reads}, but this method's network reads {reads}"
        raise InputError("network.kind", problem, f"these fit: {', '.join(fitting)}")
    return name, kind


def options_for(network: TransformerOptions, reads: str) -> KindOptions:
    """The checked options of the network's kind."""
    name, kind = kind_of(network, reads)
    return kind.options.of(network, name)


def make_network(config: TransformerConfig, reads: str = "tokens", **more: Any) -> Any:  # noqa: ANN401 - of the class that is registered
    """A new network of the kind that the config names, or of the default kind."""
    name, kind = kind_of(config, reads)
    kind.options.of(config, name)  # refuses unknown options, naming the kind
    return kind.network(config, **more)


def new_network(options: TransformerOptions, reads: str, **sizes: Any) -> Any:  # noqa: ANN401 - of the class that is registered
    """A new network for a method, given what it reads and the sizes that the data determine."""
    named = {field.name for field in fields(TransformerConfig)}
    config = {name: value for name, value in sizes.items() if name in named}
    more = {name: value for name, value in sizes.items() if name not in named}
    return make_network(TransformerConfig(**vars(options), **config), reads, **more)


def plain_network(network: TransformerOptions, reads: str) -> TransformerOptions:
    """The same options in a canonical form, without the default kind and default values."""
    name, kind = kind_of(network, reads)
    usual, given = kind.options(), kind.options.of(network, name)
    options = {key: value for key, value in vars(given).items() if value != getattr(usual, key)}
    named = None if name == NETWORKS.that_read(reads)[0] else name
    return replace(network, kind=named, options=options)
