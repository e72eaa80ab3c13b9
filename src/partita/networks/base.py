"""What a method asks of its network: base classes to derive a module from, after `nn.Module`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jaxtyping import Bool, Float, Int
from torch import Tensor

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.errors import require

if TYPE_CHECKING:
    from partita.networks.attention import KeyValueCache


class NetworkConfig:
    """The sizes that methods and samplers need."""

    if TYPE_CHECKING:  # for type checkers alone: fields and properties will do

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
            """Number of class labels; label number `classes` means none."""


class AnyNetwork:
    """What all kinds of network have: sizes."""

    if TYPE_CHECKING:

        @property
        def config(self) -> NetworkConfig:
            """Its sizes."""


class Network(AnyNetwork, ABC):
    """Tokens (and a scalar, a label) to logits at the queried positions.

    A network that only knows dense batches may leave `layout` out: it is passed where it is not
    the default. A scalar is a row's, or where the network can take it, one for each token.
    """

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
    """A network that goes on from tokens that it has read before, and knows where tokens stand."""

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
        """Logits at the queries; `caches` hold earlier tokens, and are given these.

        `positions` say where the tokens stand in their sequence: after what the caches hold,
        unless given. (A row may hold a sequence twice, noisy and clean.)
        """


class PartitionNetwork(AnyNetwork, ABC):
    """Tokens and a partition of them to logits that never depend on a token's own group."""

    @abstractmethod
    def __call__(
        self,
        tokens: Int[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        *,
        queries: Queries,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N V"]:
        """Logits at the queries given the revealed tokens, as if there were no others."""

    @abstractmethod
    def both(
        self,
        tokens: Int[Tensor, "B L"],
        groups: Bool[Tensor, "B L"],
        *,
        real: Bool[Tensor, "B L"] | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """Logits of every real token from the other group's, and where each of them stands."""


def check_bidirectional(network: object) -> None:
    """Refuse what cannot read a whole noisy sequence, on both sides of every token."""
    name = type(network).__name__
    groups = isinstance(network, PartitionNetwork)
    remedy = "use Transformer, or the method PGM"
    require(not groups, "network", f"{name} reads groups, not noisy tokens", remedy)
    remedy = "use Transformer, or derive your own from partita.networks.base.Network"
    require(isinstance(network, Network), "network", f"{name} is no Network", remedy)
    problem = "a causal network cannot see what follows a hidden token"
    causal = getattr(network, "causal", False)
    require(not causal, "network", problem, "use Transformer, or the method AR")


def check_timed(network: Network) -> None:
    """Refuse a network that cannot be told the time."""
    remedy = "build it with TransformerConfig(time=True)"
    require(network.config.time, "network", "is not told the time", remedy)
