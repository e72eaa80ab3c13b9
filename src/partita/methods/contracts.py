"""What models owe to samplers, training and evaluation: one base class for each kind of model.

A class says what it is by its base classes, and what it can do by class attributes whose defaults
are here. Data members without a default are declared for type checkers alone, so that a subclass
may bring each of them as an attribute, a class attribute or a property.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.contracts.capabilities import Recordable
from partita.contracts.layouts import DENSE, Layout
from partita.contracts.loss import Loss
from partita.contracts.packed import PackedTokens
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
    """What `sample` needs to know of any model."""

    family: ClassVar[str]
    """Which samplers fit: a name in `FAMILIES`, that of the base class which it derives from."""
    whole_texts: ClassVar[bool] = False
    """Whether texts have any length and ends of their own.

    Such a text is read, scored and written as a whole: no part of it stands for it.
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
            """An input id that no real token has; it stands for a hidden one."""

    @property
    def sizes(self) -> NetworkConfig:
        """The sizes of its network; those of none, if it has no network."""
        parts = self.children() if isinstance(self, nn.Module) else vars(self).values()
        return next((part.config for part in parts if isinstance(part, AnyNetwork)), NO_NETWORK)


NO_NETWORK = NetworkConfig()
P = TypeVar("P", bound=type[Model])
FAMILIES: Registry[type[Model]] = Registry("family")
"""The base class of each family: what its samplers need. A family shares samplers.

Above, each layer adds its part by the family's name: a default sampler (`samplers/base.py`), and
what guidance does to its models (`samplers/guided_models.py`).
"""


def family(name: str) -> Callable[[P], P]:
    """Decorator for the base class of a family."""

    def add(protocol: P) -> P:
        protocol.family = name
        FAMILIES.register(name)(protocol)
        return protocol

    return add


class TextMethod(Model, Recordable, ABC):
    """A model with a loss whose nats are a likelihood bound, or the likelihood itself."""

    about: ClassVar[About | None] = None
    """What it is, for those who choose one."""
    exact: ClassVar[bool] = False
    """Whether the loss is the likelihood itself, and nothing is drawn for it."""
    reads: ClassVar[str] = "tokens"
    """What it asks of its network (`networks/kinds.py`): tokens, groups, or something else."""
    default_rows: ClassVar[str] = "packed"
    """How documents become rows, unless a recipe says it: a name in `ROWS`."""
    partitions: ClassVar[bool] = False
    """Whether its network reads groups, not masks."""
    reads_padding: ClassVar[bool] = True
    """Whether tokens read padding, unless a layout keeps it apart."""
    passes: ClassVar[int] = 1
    """How often its network runs over a token, in a step of training."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that weight decay leaves alone."""
    plain_softmax: ClassVar[bool] = False
    """Whether `log_probabilities` is the softmax of all outputs but the mask, which kernels know.

    It holds for that function: a subclass with one of its own says it anew.
    """
    all_positions: ClassVar[bool] = False
    """Whether the loss queries the network at every position, so that none has to be found."""
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
        """Whether the nats of the loss are those of a bound."""
        return True

    def bound_ends(self, corruption: Corruption | None = None) -> float:  # noqa: ARG002 - for those with a schedule
        """Nats per token that a bound has beside the loss: prior and reconstruction."""
        return 0.0

    def needs_host_sync(self, tokens: Int64[Tensor, "B L"]) -> bool:  # noqa: ARG002 - unless known
        """Whether the loss of such tokens waits for a GPU, as `nonzero` and `item` do."""
        return True


@family("masked")
class Denoiser(Model, ABC):
    """A model that answers questions: given what is revealed, what stands at these positions?

    This is all that the samplers of the masked family know of a model.
    """

    if TYPE_CHECKING:

        @property
        def timed(self) -> bool:
            """Whether predictions depend on the time."""

        @property
        def schedule(self) -> Schedule:
            """The schedule that the model learned under."""

    @abstractmethod
    def predict(
        self,
        tokens: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        time: Float[Tensor, "B"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "N V"]:
        """Log-probabilities of the tokens at the (row, position) pairs; the mask's is -inf."""


@family("causal")
class CausalModel(Model, ABC):
    """A model that reads from left to right, and keeps what it has read."""

    @abstractmethod
    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Memory for `batch` sequences that are written from left to right."""

    @abstractmethod
    def following(
        self,
        tokens: Int64[Tensor, "B N"],
        caches: list[KeyValueCache],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B V"]:
        """Read the next tokens; log p of the one that follows them."""

    @abstractmethod
    def shifted(self, tokens: Int64[Tensor, "B L"], layout: Layout = DENSE) -> Int64[Tensor, "B L"]:
        """What the model reads to predict each token: a start token, then all but the last."""


@family("chain")
class Chain(Model, ABC):
    """A model whose reverse process moves whole states from t to s, whatever tokens they hold.

    Its network predicts the clean tokens (the mean); the process makes a step of that.
    """

    @property
    def steps(self) -> int | None:
        """How many steps the chain has; None if its time is continuous."""
        return None

    @abstractmethod
    def prior(self, like: Int64[Tensor, "B L"]) -> Float[Tensor, "B L S"]:
        """The probabilities of every state at time 1, where the process ends."""

    @abstractmethod
    def log_mean(
        self,
        tokens: Int64[Tensor, "B L"],
        time: Float[Tensor, "B"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """log p(x | z_t), the prediction of the clean tokens."""

    @abstractmethod
    def step(
        self,
        log_mean: Float[Tensor, "B L V"],
        tokens: Int64[Tensor, "B L"],
        s: Float[Tensor, "B"],
        t: Float[Tensor, "B"],
    ) -> Float[Tensor, "B L S"]:
        """p(z_s | z_t) for s < t, given the prediction at t."""


@family("score")
class ScoreModel(Model, ABC):
    """A model of ratios of probabilities: all that the samplers of scores know of one."""

    if TYPE_CHECKING:

        @property
        def graph(self) -> Graph:
            """The chain that noises a position."""

        @property
        def schedule(self) -> Schedule:
            """The schedule that the model learned under; sigma = -log alpha."""

    @abstractmethod
    def log_score(
        self,
        tokens: Int64[Tensor, "B L"],
        time: Float[Tensor, "B"],
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "N S"]:
        """log p_t(y) / p_t(x) for every state y at the (row, position) pairs."""


@family("gaussian")
class EmbeddingModel(Model, ABC):
    """A model of tokens as vectors with Gaussian noise: what the samplers of those know of one."""

    if TYPE_CHECKING:

        @property
        def process(self) -> GaussianProcess:
            """What the noise does to vectors."""

    @abstractmethod
    def vectors(self) -> Float[Tensor, "V D"]:
        """The vector of every token."""

    @abstractmethod
    def log_probabilities(
        self,
        x_t: Float[Tensor, "B L D"],
        t: Int64[Tensor, "B"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """log p(w | x_t) of every token w at every position."""

    @abstractmethod
    def clean(self, log_probs: Float[Tensor, "B L V"]) -> Float[Tensor, "B L D"]:
        """The mean vector of such laws."""


@family("flexible")
class FlexibleModel(Model, ABC):
    """A model of texts of any length: all that the sampler `insertion` knows of one."""

    whole_texts = True

    if TYPE_CHECKING:

        @property
        def process(self) -> Interpolant:
            """The schedules."""

        @property
        def end_id(self) -> int:
            """What fills up rows of shorter texts."""

    @abstractmethod
    def ask(
        self,
        text: PackedTokens,
        t: Float[Tensor, "B"],
        queries: Int64[Tensor, "M"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "M V"], Answer]:
        """Log-probabilities at some masks of the packed texts, and what gaps are missing."""
