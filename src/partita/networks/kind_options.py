"""What there is to choose about one kind of network: `network.options`, a dataclass for each kind.

A kind of your own derives from `KindOptions`, with a default for every field, and is registered
with its network (`kinds.py`). The class reads its options by `MyOptions.of(config)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from partita.errors import require, require_int
from partita.networks.levels import LOGISTIC_NUMBERS
from partita.networks.options import DEEPEST, TransformerOptions, check_heads
from partita.registry import checked_options, options_of

QUERIES = ("positions", "learned", "mean", "logsumexp")
SUMMARIES = ("mean", "logsumexp")
PROCESSES = ("linear", "mlp")
POSITIONS = ("rotary", "learned")
LEVELS_HEADS = ("categorical", "logistic")
WHERE = "network.options"
K = TypeVar("K", bound="KindOptions")


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """No options: what networks have that are all sizes."""

    @classmethod
    def of(cls: type[K], network: TransformerOptions, kind: str | None = None) -> K:
        """Those that somebody gave; what this kind does not have is refused."""
        name = kind or network.kind or "this network"
        return cls(**checked_options(WHERE, name, options_of(cls), network.options))

    def check(self, network: TransformerOptions) -> None:
        """Refuse what does not fit the network's sizes."""

    def tiny(self) -> KindOptions:
        """The same choices without sizes, for a dry run on a network of one narrow block."""
        return self

    def blocks(self, network: TransformerOptions) -> str:
        """The blocks of such a network in words."""
        return f"{network.depth} blocks"

    @property
    def summarises(self) -> bool:
        """Whether a query reads a summary of all that is visible, whose size no program fixes."""
        return False

    @property
    def learned(self) -> bool:
        """Whether every position has a vector of its own, which is added to its token's."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether the head knows that tokens are levels in order."""
        return False

    def head_size(self, outputs: int) -> int:
        """How many numbers tell the distribution of a token with so many values."""
        return outputs


@dataclass(frozen=True, kw_only=True)
class HeadOptions(KindOptions):
    """How tokens are predicted, where they may be levels in order."""

    levels_head: str = "categorical"
    """How tokens are predicted: categorical (any distribution), or logistic (a mixture of
    discretised logistics, for tokens that are levels in order)."""
    logistics: int = 5
    """How many logistics a logistic head mixes."""

    def __post_init__(self) -> None:
        check_name("levels_head", self.levels_head, LEVELS_HEADS)
        require_int(self.logistics, f"{WHERE}.logistics")

    @property
    def ordered(self) -> bool:
        return self.levels_head == "logistic"

    def head_size(self, outputs: int) -> int:
        return LOGISTIC_NUMBERS * self.logistics if self.ordered else outputs


@dataclass(frozen=True, kw_only=True)
class TokenOptions(HeadOptions):
    """A transformer that reads every token."""

    positions: str = "rotary"
    """How positions are told: rotary, or learned (a vector is added to each embedding)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("positions", self.positions, POSITIONS)

    @property
    def learned(self) -> bool:
        return self.positions == "learned"


@dataclass(frozen=True, kw_only=True)
class PixelOptions(HeadOptions):
    """Convolutions over pixels."""

    channels: int = 1
    """Tokens of each pixel (3 of a colored one), which stand side by side; a row of the grid has
    that many for each of its pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.channels, f"{WHERE}.channels")

    def blocks(self, network: TransformerOptions) -> str:
        return f"{network.depth} + 2 + {network.depth + 1} blocks of convolutions"


@dataclass(frozen=True, kw_only=True)
class PatchOptions(PixelOptions):
    """A transformer of patches of pixels."""

    patch: int = 2
    """Rows and columns of pixels in a patch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.patch, f"{WHERE}.patch")

    def blocks(self, network: TransformerOptions) -> str:
        return f"{network.depth} blocks on patches of {self.patch} x {self.patch} pixels,"


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(KindOptions):
    """A partition network: how its blocks are shared out, and what queries are."""

    decoder_depth: int | None = None
    """How many of the blocks are the decoder's; half of network.depth unless given."""
    decoder_width: int | None = None
    """Channels of each query; network.width unless given."""
    decoder_heads: int | None = None
    """Attention heads of the decoder; unless given, of the encoder's head width, as far as the
    width allows."""
    queries: str = "positions"
    """What queries start from: positions, learned (no positions), mean or logsumexp (positions
    and that aggregate of the other group)."""
    process: str = "linear"
    """How they are turned into queries: linear or mlp."""

    def __post_init__(self) -> None:
        if self.decoder_depth is not None:
            require_int(self.decoder_depth, f"{WHERE}.decoder_depth", 0, DEEPEST)
        for name in ("decoder_width", "decoder_heads"):
            if getattr(self, name) is not None:
                require_int(getattr(self, name), f"{WHERE}.{name}")
        check_name("queries", self.queries, QUERIES)
        check_name("process", self.process, PROCESSES)

    def check(self, network: TransformerOptions) -> None:
        self.decoder(network)

    def tiny(self) -> PartitionOptions:
        return replace(self, decoder_depth=None, decoder_width=None, decoder_heads=None)

    def blocks(self, network: TransformerOptions) -> str:
        decoder = self.decoder(network)[0]
        return f"{network.depth - decoder} + {decoder} blocks (encoder and decoder)"

    @property
    def summarises(self) -> bool:
        return self.queries in SUMMARIES

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


def check_name(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a choice that there is not."""
    hint = f"known: {', '.join(known)}"
    require(value in known, f"{WHERE}.{option}", f"unknown name {value!r}", hint)
