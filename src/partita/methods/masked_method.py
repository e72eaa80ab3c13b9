"""What MDLM, MD4 and their relatives have in common as methods: a network, a law, a loss.

The process itself is in `masked.py`, the laws by which training hides tokens in `corruption.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.packed import places_of
from partita.errors import InputError, require
from partita.methods.asking import asks_everywhere, head_of
from partita.methods.base import check_tokens
from partita.methods.contracts import Denoiser, QueriesHidden, TextMethod
from partita.methods.weighing import weighed
from partita.networks.base import AnyNetwork, Network, check_bidirectional
from partita.networks.kinds import make_network
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.processes.corruption import Continuous, Corruption, Law, Subset, make_law
from partita.randomness import Noise
from partita.schedules import Schedule, make_schedule

TIME_SCALE = 1000.0  # the sinusoids that embed a time resolve steps of about 1, so t is stretched


class MaskedMethod(nn.Module, TextMethod, Denoiser, QueriesHidden):
    """A network that predicts hidden tokens, with the law by which training hides them.

    A subclass states its parameterisation (how logits become the prediction x_theta) and the
    choices that its paper makes.
    """

    family: str = "masked"
    network: Network
    mask_id: int
    schedule: Schedule
    default_schedule: ClassVar[str]
    default_law: ClassVar[str]
    default_conditioning: ClassVar[str]
    predicts_real_tokens_alone: ClassVar[bool] = False
    partitions: ClassVar[bool] = False  # whether its network reads groups, not masks
    reads_padding: ClassVar[bool] = True  # unless a layout keeps it apart

    def __init__(
        self,
        network: AnyNetwork,
        *,
        mask_id: int | None = None,
        schedule: str | Schedule | None = None,
        law: str | Law | None = None,
        conditioning: str | None = None,
        **law_options: Any,
    ) -> None:
        """The mask is the last input id unless told otherwise; the rest defaults to the paper's.

        `conditioning` says what the network is told: "none", the "time" t, or "sigma", -log alpha.
        `law_options` go to the law, for example `law="discrete", steps=64`.
        """
        super().__init__()
        self._check_kind(network)
        self.network = network  # type: ignore[assignment]  # PGM declares its own
        self.mask_id = self._default_mask_id() if mask_id is None else mask_id
        self.schedule = make_schedule(schedule or self.default_schedule)
        self.law = make_law(law or self.default_law, self.schedule, **law_options)
        self.conditioning = conditioning or self.default_conditioning
        self._check_conditioning()
        self._check_network()

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule: str | None = None,
        schedule_options: dict[str, float] | None = None,
        law: str | None = None,
        law_options: dict[str, int] | None = None,
        conditioning: str | None = None,
    ) -> MaskedMethod:
        """The method over a new network for ids 0..tokens-1; the mask is the id after them."""
        told = conditioning or cls.default_conditioning
        return cls(
            cls._new_network(network, tokens, told != "none"),  # type: ignore[arg-type]
            schedule=make_schedule(schedule or cls.default_schedule, **(schedule_options or {})),
            law=law,
            conditioning=told,
            **(law_options or {}),
        )

    @classmethod
    def _new_network(cls, options: TransformerOptions, tokens: int, timed: bool) -> nn.Module:
        outputs = tokens if cls.predicts_real_tokens_alone else None
        config = TransformerConfig(
            **vars(options), vocab_size=tokens + 1, output_size=outputs, time=timed
        )
        return make_network(config)

    def _default_mask_id(self) -> int:
        return self.network.config.vocab_size - 1

    @staticmethod
    def _check_kind(network: object) -> None:
        check_bidirectional(network)

    def _check_network(self) -> None:
        ids = self.vocab_size
        require(
            isinstance(self.mask_id, int) and 0 <= self.mask_id < ids,
            "mask_id",
            f"must be one of the network's input ids 0..{ids - 1}, got {self.mask_id!r}",
        )
        require(
            not self.timed or self.network.config.time,
            "conditioning",
            f"is {self.conditioning!r}, but the network is not told the time",
            "build it with TransformerConfig(time=True), or pass conditioning='none'",
        )

    def check_law(self, law: Law) -> None:
        """A network that reads the time needs a law that has one."""
        require(
            not self.timed or law.timed,
            "law",
            f"{type(law).__name__} hides tokens without a time, but the network reads one",
            "choose conditioning none, or a law with a time, such as continuous",
        )

    def _check_conditioning(self) -> None:
        require(
            self.conditioning in ("none", "time", "sigma"),
            "conditioning",
            f"unknown name {self.conditioning!r}",
            "known: none, sigma, time",
        )
        self.check_law(self.law)
        one = torch.ones((), dtype=torch.float64, device="cpu")  # also where a network is on "meta"
        end = float(self.schedule.alpha(one))
        require(
            self.conditioning != "sigma" or end > 0,
            "conditioning",
            "sigma = -log alpha is infinite at t = 1 under this schedule",
            "use conditioning='time', or a reference schedule such as 'mdlm:loglinear'",
        )

    @property
    def length(self) -> int:
        return self.network.config.length

    @property
    def vocab_size(self) -> int:
        return self.network.config.vocab_size

    @property
    def timed(self) -> bool:
        return self.conditioning != "none"

    @property
    def bound_law(self) -> Law:
        """A law whose weights are those of a bound: the method's own if it is one."""
        if self.law.bound:
            return self.law
        return Continuous(self.schedule) if self.timed else Subset()

    @abstractmethod
    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """The parameterisation: log x_theta, with no mass on the mask."""

    def predict(
        self,
        tokens: Int64[Tensor, "B L"],
        revealed: Bool[Tensor, "B L"],
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        time: Float[Tensor, "B"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        *,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N V"]:
        """log x_theta at the queried positions, where the network sees the mask."""
        asked = Queries(rows, positions)
        return self.log_probabilities(self._ask(tokens, revealed, asked, time, label, layout))

    def _ask(
        self,
        tokens: Tensor,
        revealed: Tensor,
        asked: Queries,
        time: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        **how: Any,
    ) -> Tensor:
        """Logits, or with `head_of` what the head would make them of."""
        z = torch.where(revealed, tokens, self.mask_id)
        how |= {} if layout is DENSE else {"layout": layout}  # not known to all
        return self.network(z, queries=asked, scalar=self.scalar(time), label=label, **how)

    def scalar(self, time: Tensor | None) -> Tensor | None:
        """What the network is told of the time."""
        if not self.timed:
            return None
        if time is None:
            raise InputError("time", "this network is conditioned on the time, and none was given")
        if self.conditioning == "time":
            return (TIME_SCALE * time).float()
        return -torch.log(self.schedule.alpha(time)).float()

    def loss(
        self,
        tokens: Int64[Tensor, "B L"],
        noise: Noise,
        step: int = 0,
        *,
        batch: int | None = None,
        valid: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        law: Law | None = None,
        layout: Layout = DENSE,
    ) -> Loss:
        """Hide tokens by the law, predict them, weigh the cross-entropy.

        `noise.samples` numbers the rows within a global batch of `batch` rows, so that several
        processes share one low-discrepancy set of times. Tokens that are not `valid` (padding)
        are never hidden and never count. `layout` says which tokens the network lets read which,
        for example `PackedLayout.of_documents(ends)` where documents share a row (and its time).
        """
        tokens, real = self._ready(tokens, valid)
        drawn = (law or self.law).draw(real, noise, step, batch or tokens.shape[0])
        return self.loss_under(tokens, drawn, real, label, layout=layout)

    def _ready(self, tokens: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens with the mask in place of padding, which may hold anything; which are real."""
        check_tokens(tokens, self, valid)
        if valid is None:
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        return torch.where(valid, tokens, self.mask_id), valid

    def loss_under(
        self,
        tokens: Int64[Tensor, "B L"],
        corruption: Corruption,
        valid: Bool[Tensor, "B L"],
        label: Int64[Tensor, "B"] | None = None,
        *,
        layout: Layout = DENSE,
    ) -> Loss:
        """The loss for tokens that are already hidden."""
        hidden, weights = corruption.masked, corruption.weights
        everywhere = asks_everywhere(self, tokens)
        queries = places_of(None if everywhere else hidden, tokens)
        seen = tokens, ~hidden, queries, corruption.times, label, layout
        answer = self._ask(*seen, **head_of(self))
        if not everywhere:
            return weighed(self, answer, queries, tokens, weights, valid)
        some_token = int(self.mask_id == 0)  # a visible place may hold a mask: padding
        asked, weights = tokens.where(hidden, some_token), weights.where(hidden, 0)
        return weighed(self, answer, queries, asked, weights, valid).of(hidden)
