"""What models owe to samplers, training and evaluation: one base class for each kind of model.

A class says what it is by its base classes. Their data members are declared for type checkers
alone, so that a subclass may bring each of them as an attribute, a class attribute or a property.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.contracts.layouts import DENSE, Layout
from partita.contracts.packed import PackedTokens
from partita.networks.flexible import Answer
from partita.randomness import Noise

if TYPE_CHECKING:
    from partita.contracts.loss import Loss
    from partita.networks.base import AnyNetwork
    from partita.processes.ctmc import Graph
    from partita.processes.insertion import Interpolant
    from partita.schedules import Schedule


class Model:
    """What `sample` needs to know of any model."""

    if TYPE_CHECKING:

        @property
        def family(self) -> str:
            """Which samplers fit: one of `FAMILIES` in `methods/base.py`."""

        @property
        def length(self) -> int:
            """Longest sequence."""

        @property
        def vocab_size(self) -> int:
            """Number of input ids, the mask's included."""

        @property
        def mask_id(self) -> int:
            """An input id that no real token has; it stands for a hidden one."""


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


class TextMethod(Model, ABC):
    """A model with a loss whose nats are a likelihood bound, or the likelihood itself."""

    @abstractmethod
    def loss(
        self,
        tokens: Int64[Tensor, "B L"],
        noise: Noise,
        step: int,
        *,
        batch: int | None = None,
        valid: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Loss:
        """The loss of a batch."""


class Chain(Model, ABC):
    """A model whose reverse process moves whole states from t to s, whatever tokens they hold.

    Its network predicts the clean tokens (the mean); the process makes a step of that.
    """

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


class FlexibleModel(Model, ABC):
    """A model of texts of any length: all that the sampler `insertion` knows of one."""

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


class QueriesHidden:
    """A method whose loss queries its network at hidden tokens."""

    all_positions: ClassVar[bool] = False
    """Whether it queries all tokens, so that none has to be found."""

    everywhere: bool | None = None
    """Whether it queries visible positions too; None: on GPUs, if the head is small."""

    if TYPE_CHECKING:

        @property
        def network(self) -> AnyNetwork:
            """What is queried."""


OWED: dict[str, type[Model]] = {
    "masked": Denoiser,
    "causal": Model,
    "chain": Chain,
    "score": ScoreModel,
    "gaussian": Model,
    "flexible": FlexibleModel,
}
"""Which base class the samplers of a family need."""
