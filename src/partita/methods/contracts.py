"""Base classes of models: what samplers, training and evaluation need from each kind.

A class declares its kind by its base classes, and its capabilities by class attributes whose
defaults are here. Data members without a default are declared for type checkers only, so that a
subclass may define each as an attribute, a class attribute or a property.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from jaxtyping import Float, Int64
from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.contracts.capabilities import Recordable
from partita.contracts.layouts import DENSE, Layout
from partita.contracts.loss import Loss
from partita.contracts.packed import PackedTokens
from partita.contracts.shapes import Indices, Labels, LogProbs, Marks, RowSteps, RowTimes, Tokens
from partita.networks.attention import KeyValueCache
from partita.networks.base import AnyNetwork, NetworkConfig
from partita.networks.flexible import Answer
from partita.randomness import Noise
from partita.registry import Registry

if TYPE_CHECKING:
    from partita.methods.base import About
    from partita.processes.corruption import Corruption
    from partita.processes.ctmc import Graph
    from partita.processes.gaussian import GaussianProcess
    from partita.processes.insertion import Interpolant
    from partita.schedules import Schedule


class Model:
    """What `sample` needs to know about any model."""

    family: ClassVar[str]
    """Which samplers fit: the name in `FAMILIES` of the base class that it derives from."""
    whole_texts: ClassVar[bool] = False
    """Whether the model generates the length of a text too.

    Such texts are read, scored and written whole, never cut into parts.
    """

    if TYPE_CHECKING:

        @property
        def length(self) -> int:
            """Longest sequence."""

        @property
        def vocab_size(self) -> int:
            """Number of input ids, the mask's included."""

        @property
        def mask_id(self) -> int:
            """The input id of a hidden token; no real token has it."""

    @property
    def sizes(self) -> NetworkConfig:
        """The sizes of its network; `NO_NETWORK` if it has none."""
        parts = self.children() if isinstance(self, nn.Module) else vars(self).values()
        return next((part.config for part in parts if isinstance(part, AnyNetwork)), NO_NETWORK)


NO_NETWORK = NetworkConfig()
P = TypeVar("P", bound=type[Model])
FAMILIES: Registry[type[Model]] = Registry("family")
"""The base class of each family of models; the models of a family share their samplers.

Higher layers register more by the family's name: a default sampler (`samplers/base.py`), and the
guided form of a model (`samplers/guided_models.py`).
"""


def family(name: str) -> Callable[[P], P]:
    """Decorator for the base class of a family."""

    def add(protocol: P) -> P:
        protocol.family = name
        FAMILIES.register(name)(protocol)
        return protocol

    return add


class TextMethod(Model, Recordable, ABC):
    """A method for tokens, whose loss is a bound on the likelihood or the exact likelihood."""

    about: ClassVar[About | None] = None
    """Its description."""
    exact: ClassVar[bool] = False
    """Whether the loss is the exact likelihood, without random noise."""
    reads: ClassVar[str] = "tokens"
    """What its network reads (`networks/kinds.py`): tokens, groups, or something else."""
    default_rows: ClassVar[str] = "packed"
    """How documents become rows by default: a name in `ROWS`."""
    partitions: ClassVar[bool] = False
    """Whether its network reads groups instead of masks."""
    reads_padding: ClassVar[bool] = True
    """Whether tokens attend to padding, unless a layout excludes it."""
    passes: ClassVar[int] = 1
    """How often its network processes each token in a training step."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters without weight decay."""
    plain_softmax: ClassVar[bool] = False
    """Whether `log_probabilities` is the softmax of all outputs but the mask, as in the kernels.

    A subclass that overrides that function has to declare it again.
    """
    all_positions: ClassVar[bool] = False
    """Whether the loss queries the network at every position."""
    everywhere: bool | None = None
    """Whether the loss queries visible positions too; None: on GPUs, if the head is small."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "log_probabilities" in cls.__dict__:
            cls.plain_softmax = bool(cls.__dict__.get("plain_softmax", False))

    @abstractmethod
    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """The loss of a batch."""

    @property
    def is_bounding(self) -> bool:
        """Whether the nats of the loss are a bound on the likelihood."""
        return True

    def bound_ends(self, corruption: Corruption | None = None) -> float:  # noqa: ARG002 - for those with a schedule
        """Nats per token to add to the loss for a bound: prior and reconstruction terms."""
        return 0.0

    def needs_host_sync(self, tokens: Tokens) -> bool:  # noqa: ARG002 - unless known
        """Whether computing the loss waits for the GPU, as `nonzero` and `item` do."""
        return True


@family("masked")
class Denoiser(Model, ABC):
    """A model that predicts the tokens at queried positions, given the revealed tokens.

    Samplers of the masked family use a model only through this interface.
    """

    if TYPE_CHECKING:

        @property
        def timed(self) -> bool:
            """Whether predictions depend on the time."""

        @property
        def schedule(self) -> Schedule:
            """The schedule that the model was trained with."""

    @abstractmethod
    def predict(
        self,
        tokens: Tokens,
        revealed: Marks,
        rows: Indices,
        positions: Indices,
        time: RowTimes | None = None,
        label: Labels | None = None,
    ) -> Float[Tensor, "N V"]:
        """Log-probabilities of all tokens at the (row, position) pairs; the mask's is -inf."""


@family("causal")
class CausalModel(Model, ABC):
    """A model that reads from left to right, with a key-value cache."""

    @abstractmethod
    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Empty key-value caches for `batch` sequences."""

    @abstractmethod
    def following(
        self, tokens: Int64[Tensor, "B N"], caches: list[KeyValueCache], label: Labels | None = None
    ) -> Float[Tensor, "B V"]:
        """Append tokens to the caches; log-probabilities of the token that follows them."""

    @abstractmethod
    def shifted(self, tokens: Tokens, layout: Layout = DENSE) -> Int64[Tensor, "B L"]:
        """The inputs from which each token is predicted: a start token, then all but the last."""


@family("chain")
class Chain(Model, ABC):
    """A model whose reverse process is a Markov chain in which any position may change.

    Its network predicts the clean tokens (the mean); the process turns that into a step from t
    to s.
    """

    @property
    def steps(self) -> int | None:
        """Number of steps of the chain; None if time is continuous."""
        return None

    @abstractmethod
    def prior(self, like: Tokens) -> Float[Tensor, "B L S"]:
        """The distribution of each position's state at time 1, where sampling starts."""

    @abstractmethod
    def log_mean(self, tokens: Tokens, time: RowTimes, label: Labels | None = None) -> LogProbs:
        """log p(x | z_t), the prediction of the clean tokens."""

    @abstractmethod
    def step(
        self, log_mean: LogProbs, tokens: Tokens, s: RowTimes, t: RowTimes
    ) -> Float[Tensor, "B L S"]:
        """p(z_s | z_t) for s < t, given the prediction at time t."""


@family("score")
class ScoreModel(Model, ABC):
    """A model of scores, which are ratios of probabilities, for score-based samplers."""

    if TYPE_CHECKING:

        @property
        def graph(self) -> Graph:
            """The Markov chain that adds noise to each position."""

        @property
        def schedule(self) -> Schedule:
            """The schedule that the model was trained with; sigma = -log alpha."""

    @abstractmethod
    def log_score(
        self,
        tokens: Tokens,
        time: RowTimes,
        rows: Indices,
        positions: Indices,
        label: Labels | None = None,
    ) -> Float[Tensor, "N S"]:
        """log p_t(y) / p_t(x) for every state y at the (row, position) pairs."""


@family("gaussian")
class EmbeddingModel(Model, ABC):
    """A model of tokens as vectors with Gaussian noise, for the samplers of Gaussian diffusion."""

    if TYPE_CHECKING:

        @property
        def process(self) -> GaussianProcess:
            """The Gaussian process that adds noise to the vectors."""

    @abstractmethod
    def vectors(self) -> Float[Tensor, "V D"]:
        """The vector of every token."""

    @abstractmethod
    def log_probabilities(
        self, x_t: Float[Tensor, "B L D"], t: RowSteps, label: Labels | None = None
    ) -> LogProbs:
        """log p(w | x_t) of every token w at every position."""

    @abstractmethod
    def clean(self, log_probs: LogProbs) -> Float[Tensor, "B L D"]:
        """The expected vector at each position, under these distributions of tokens."""


@family("flexible")
class FlexibleModel(Model, ABC):
    """A model of texts of any length, for the sampler `insertion`."""

    whole_texts = True

    if TYPE_CHECKING:

        @property
        def process(self) -> Interpolant:
            """The schedules of insertion and unmasking."""

        @property
        def end_id(self) -> int:
            """The id that fills up the rows of shorter texts."""

    @abstractmethod
    def ask(
        self, text: PackedTokens, t: RowTimes, queries: Indices, label: Labels | None = None
    ) -> tuple[Float[Tensor, "N V"], Answer]:
        """Log-probabilities at the queried masks, and how many tokens each gap is missing."""
