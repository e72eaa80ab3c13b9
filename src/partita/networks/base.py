"""Base classes of networks, to derive from after `nn.Module`: what methods need from each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

from partita.contracts.capabilities import Recordable
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.shapes import Marks
from partita.errors import require

if TYPE_CHECKING:
    from partita.networks.attention import KeyValueCache


class NetworkConfig:
    """The sizes that methods and samplers need."""

    if TYPE_CHECKING:  # for type checkers only: subclasses may use fields or properties

        @property
        def vocab_size(self) -> int:
            """Number of input ids."""

        @property
        def outputs(self) -> int:
            """Number of logits."""

        @property
        def length(self) -> int:
            """Longest sequence."""

        @property
        def time(self) -> bool:
            """Whether the network reads a scalar: a time or a noise level."""

        @property
        def classes(self) -> int:
            """Number of class labels; the label `classes` means none."""

        @property
        def grid(self) -> int:
            """Columns of a grid of tokens; 0 for a line."""

        @property
        def dropout(self) -> float:
            """Dropout rate of each branch's output in training (with torch's own generator)."""

    else:
        classes, grid, dropout = 0, 0, 0.0


class AnyNetwork(Recordable):
    """The base class of all networks: sizes and capabilities."""

    tokens_each: int = 1
    """How many tokens share a position of the network: those of a pixel, or of a patch."""
    packed: bool = True
    """Whether it computes on packed tokens, without waiting for a device to find them."""

    @property
    def fuses(self) -> bool:
        """Whether the loss should apply the head itself, calling with `project=False`."""
        return False

    @property
    def attended_width(self) -> float:
        """Sum of the widths of all attention layers, each times its share of computed pairs."""
        return 0.0

    if TYPE_CHECKING:

        @property
        def config(self) -> NetworkConfig:
            """Its sizes."""


class Network(AnyNetwork, ABC):
    """Maps tokens (and a scalar and a label) to logits at the queried positions.

    A network for dense batches only may omit `layout`, which is passed only if it is not the
    default. There is one scalar for each row or, if the network supports it, for each token.
    """

    causal: bool = False
    """Whether a token attends only to itself and earlier tokens."""

    @abstractmethod
    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | Float[Tensor, "B L"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N V"]:
        """Logits at the queries."""


class CachingNetwork(Network, ABC):
    """A network with key-value caches, which can continue after the tokens that they hold."""

    @abstractmethod
    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Empty caches, one for each layer, for `batch` sequences of the network's length."""

    @abstractmethod
    def __call__(
        self,
        tokens: Int[Tensor, "B N"],
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | Float[Tensor, "B N"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
        positions: Int[Tensor, "N"] | None = None,
        caches: list[KeyValueCache] | None = None,
    ) -> Float[Tensor, "M V"]:
        """Logits at the queries; the tokens are appended to `caches`, which hold earlier ones.

        `positions` are those of the tokens in their sequence; by default they follow the cached
        tokens. (A row may hold a sequence twice, noisy and clean.)
        """


class PartitionNetwork(AnyNetwork, ABC):
    """Maps tokens and a partition of them to logits that never depend on a token's own group."""

    @abstractmethod
    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        revealed: Marks,
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N V"]:
        """Logits at the queries given only the revealed tokens."""

    @abstractmethod
    def both(
        self,
        tokens: Int[Tensor, "B L"],
        groups: Marks,
        *,
        real: Marks | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """Logits of every real token given the other group, and their positions."""


def check_bidirectional(network: object) -> None:
    """Refuse a network that cannot attend to both sides of every token."""
    name = type(network).__name__
    groups = isinstance(network, PartitionNetwork)
    remedy = "use Transformer, or the method PGM"
    require(not groups, "network", f"{name} reads groups, not noisy tokens", remedy)
    remedy = "use Transformer, or derive your own from partita.networks.base.Network"
    require(isinstance(network, Network), "network", f"{name} is no Network", remedy)
    problem = "a causal network cannot see what follows a hidden token"
    assert isinstance(network, Network)
    require(not network.causal, "network", problem, "use Transformer, or the method AR")


def check_partition(network: object) -> None:
    """Refuse a network that is not a `PartitionNetwork`."""
    problem = f"{type(network).__name__} does not keep the groups of a partition apart"
    fits = isinstance(network, PartitionNetwork)
    require(fits, "network", problem, "use PartitionTransformer")


def check_timed(network: Network) -> None:
    """Refuse a network that is not conditioned on the time."""
    remedy = "build it with TransformerConfig(time=True)"
    require(network.config.time, "network", "takes no time as an input", remedy)
