"""The options of one kind of network, `network.options`: a dataclass for each kind.

For your own kind, derive a class from `KindOptions` with a default for every field, and register
it with the network (`kinds.py`). The network reads its options by `MyOptions.of(config)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from partita.errors import require, require_int, require_known
from partita.networks.levels import LOGISTIC_NUMBERS
from partita.networks.options import DEEPEST, TransformerOptions, check_heads
from partita.registry import checked_options, options_of

QUERIES = ("positions", "learned", "mean", "logsumexp")
PROCESSES = ("linear", "mlp")
POSITIONS = ("rotary", "learned")
LEVELS_HEADS = ("categorical", "logistic")
WHERE = "network.options"
K = TypeVar("K", bound="KindOptions")


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """The base class, without options, for networks that need only sizes."""

    @classmethod
    def of(cls: type[K], network: TransformerOptions, kind: str | None = None) -> K:
        """The options given in `network.options`; unknown ones are refused."""
        from partita.networks.kinds import NETWORKS  # which imports this file

        name = kind or network.kind or "this network"
        others = {other: options_of(NETWORKS[other].options) for other in NETWORKS}
        return cls(**checked_options(WHERE, name, options_of(cls), network.options, others))

    def check(self, network: TransformerOptions) -> None:
        """Refuse options that do not fit the network's sizes."""

    def tiny(self) -> KindOptions:
        """The same choices without sizes, for a dry run on a network of one narrow block."""
        return self

    def blocks(self, network: TransformerOptions) -> str:
        """The number of blocks of such a network, in words."""
        return f"{network.depth} blocks"

    @property
    def aggregates(self) -> bool:
        """Whether queries read an aggregate of all visible tokens, whose number is not fixed."""
        return False

    @property
    def learned(self) -> bool:
        """Whether positions have learned vectors, which are added to the token embeddings."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether the head treats tokens as ordered levels."""
        return False

    def head_size(self, outputs: int) -> int:
        """How many numbers parameterize the distribution of a token with `outputs` values."""
        return outputs


@dataclass(frozen=True, kw_only=True)
class HeadOptions(KindOptions):
    """Options of the output head, for tokens that may be ordered levels."""

    levels_head: str = "categorical"
    """How tokens are predicted: categorical (any distribution), or logistic (a mixture of
    discretized logistics, for tokens that are ordered levels)."""
    logistics: int = 5
    """Number of logistics in the mixture of a logistic head."""

    def __post_init__(self) -> None:
        require_known(self.levels_head, f"{WHERE}.levels_head", LEVELS_HEADS)
        require_int(self.logistics, f"{WHERE}.logistics")

    @property
    def ordered(self) -> bool:
        return self.levels_head == "logistic"

    def head_size(self, outputs: int) -> int:
        return LOGISTIC_NUMBERS * self.logistics if self.ordered else outputs


@dataclass(frozen=True, kw_only=True)
class TokenOptions(HeadOptions):
    """Options of a transformer of tokens."""

    positions: str = "rotary"
    """How positions are encoded: rotary, or learned (a vector is added to each embedding)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known(self.positions, f"{WHERE}.positions", POSITIONS)

    @property
    def learned(self) -> bool:
        return self.positions == "learned"


@dataclass(frozen=True, kw_only=True)
class PixelOptions(HeadOptions):
    """Options of a network of pixels."""

    channels: int = 1
    """Tokens of each pixel (3 for RGB), which are adjacent in the sequence; a row of the grid has
    that many for each of its pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.channels, f"{WHERE}.channels")

    def blocks(self, network: TransformerOptions) -> str:
        return f"{network.depth} + 2 + {network.depth + 1} blocks of convolutions"


@dataclass(frozen=True, kw_only=True)
class PatchOptions(PixelOptions):
    """Options of a transformer of patches of pixels."""

    patch: int = 2
    """Rows and columns of pixels in a patch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.patch, f"{WHERE}.patch")

    def blocks(self, network: TransformerOptions) -> str:
        return f"{network.depth} blocks on patches of {self.patch} x {self.patch} pixels,"


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(KindOptions):
    """Options of a partition network: the sizes of its decoder, and how queries are made."""

    decoder_depth: int | None = None
    """Number of the blocks in the decoder; half of network.depth unless given."""
    decoder_width: int | None = None
    """Channels of each query; network.width unless given."""
    decoder_heads: int | None = None
    """Attention heads of the decoder; by default as many as give the encoder's head width, if
    possible."""
    queries: str = "positions"
    """What queries are computed from: positions (u + pos_i), learned (u alone), mean or
    logsumexp (u + pos_i and that aggregate of the other group)."""
    process: str = "linear"
    """The layer that computes queries from these: linear or mlp."""

    def __post_init__(self) -> None:
        if self.decoder_depth is not None:
            require_int(self.decoder_depth, f"{WHERE}.decoder_depth", 0, DEEPEST)
        for name in ("decoder_width", "decoder_heads"):
            if getattr(self, name) is not None:
                require_int(getattr(self, name), f"{WHERE}.{name}")
        require_known(self.queries, f"{WHERE}.queries", QUERIES)
        require_known(self.process, f"{WHERE}.process", PROCESSES)

    def check(self, network: TransformerOptions) -> None:
        self.decoder(network)

    def tiny(self) -> PartitionOptions:
        return replace(self, decoder_depth=None, decoder_width=None, decoder_heads=None)

    def blocks(self, network: TransformerOptions) -> str:
        decoder = self.decoder(network)[0]
        return f"{network.depth - decoder} + {decoder} blocks (encoder and decoder)"

    @property
    def aggregates(self) -> bool:
        return self.queries in ("mean", "logsumexp")

    def decoder(self, network: TransformerOptions) -> tuple[int, int, int]:
        """Blocks, width and heads of the decoder."""
        depth = network.depth // 2 if self.decoder_depth is None else self.decoder_depth
        problem = f"{depth} of {network.depth} blocks leave none for the encoder"
        remedy = "give less, or more in all"
        require(depth < network.depth, f"{WHERE}.decoder_depth", problem, remedy)
        width = self.decoder_width or network.width
        heads = self.decoder_heads or max(1, width // (network.width // network.heads))
        name = "decoder_width" if self.decoder_heads is None else "decoder_heads"
        check_heads(width, heads, f"{WHERE}.{name}", network.grid)
        return depth, width, heads
