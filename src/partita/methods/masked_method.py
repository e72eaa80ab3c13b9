"""The base class of MDLM, MD4, MaskGIT and PGM: a network, a corruption and a loss.

The forward process is in `processes/masked.py`; `processes/corruption.py` says which tokens
training hides, and how much each of them counts.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.shapes import Indices, Labels, Marks, RowTimes, Tokens
from partita.errors import InputError, require
from partita.methods.base import NetworkMethod, check_batch, check_conditioning
from partita.methods.contracts import Denoiser
from partita.methods.inference import hidden_queries, queries_everywhere, query_hidden
from partita.methods.weighing import weighted_cross_entropy
from partita.moved import old_keywords
from partita.networks.base import AnyNetwork, Network, check_bidirectional, check_partition
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.corruption import Continuous, Corrupted, Corruption, Subset, make_corruption
from partita.processes.masked import prior_nats, reconstruction_nats
from partita.randomness import Noise
from partita.schedules import Schedule, make_schedule

TIME_SCALE = 1000.0  # sinusoidal embeddings resolve steps of about 1, so t in [0, 1] is scaled up

CHOICES = {
    "schedule": "alpha(t); see the list of schedules",
    "corruption": "how tokens are hidden and weighted; see the list of corruptions",
    "conditioning": "what the network is conditioned on: none, time or sigma",
}
"""The options of most masked methods."""


class MaskedMethod(NetworkMethod, Denoiser):
    """A network that predicts hidden tokens, and the corruption that hides them in training.

    A subclass defines its parameterization (how logits become the prediction x_theta) and its
    paper's defaults. Its network reads masked tokens or, with `partitions`, groups of tokens.
    """

    network: Network
    mask_id: int
    schedule: Schedule
    default_schedule: ClassVar[str]
    default_corruption: ClassVar[str]
    default_conditioning: ClassVar[str]
    predicts_real_tokens_alone: ClassVar[bool] = False

    @old_keywords(law="corruption")
    def __init__(
        self,
        network: AnyNetwork,
        *,
        mask_id: int | None = None,
        schedule: str | Schedule | None = None,
        corruption: str | Corruption | None = None,
        conditioning: str | None = None,
        **corruption_options: Any,
    ) -> None:
        """`mask_id` defaults to the last input id; the other arguments to the paper's choices.

        `conditioning` says what the network is conditioned on: "none", the "time" t, or "sigma",
        which is -log alpha. `corruption_options` are passed on to the corruption, for example
        `corruption="discrete", steps=64`.
        """
        super().__init__()
        (check_partition if self.partitions else check_bidirectional)(network)
        self.network = network  # type: ignore[assignment]  # PGM declares its own
        self.mask_id = self._ids - 1 if mask_id is None else mask_id
        self.schedule = make_schedule(schedule or self.default_schedule)
        self.corruption = make_corruption(
            corruption or self.default_corruption, self.schedule, **corruption_options
        )
        self.conditioning = conditioning or self.default_conditioning
        self._check()

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule: str | None = None,
        schedule_options: dict[str, float] | None = None,
        corruption: str | None = None,
        corruption_options: dict[str, int] | None = None,
        conditioning: str | None = None,
    ) -> MaskedMethod:
        """Build the method with a new network for ids 0..tokens-1; the mask id is `tokens`."""
        conditioning = conditioning or cls.default_conditioning
        outputs = tokens if cls.predicts_real_tokens_alone else None
        inputs = tokens + (not cls.partitions)  # a network that reads groups has no mask
        sizes = {"vocab_size": inputs, "output_size": outputs, "time": conditioning != "none"}
        return cls(
            new_network(network, cls.reads, **sizes),
            schedule=make_schedule(schedule or cls.default_schedule, **(schedule_options or {})),
            corruption=corruption,
            conditioning=conditioning,
            **(corruption_options or {}),
        )

    @property
    def _ids(self) -> int:
        """Number of ids, the mask's included; partition networks have no input for the mask."""
        return self.network.config.vocab_size + self.partitions

    def _check(self) -> None:
        check_conditioning(self.conditioning, self.network)
        self.check_corruption(self.corruption)
        one = torch.ones((), dtype=torch.float64, device="cpu")  # also where a network is on "meta"
        end = float(self.schedule.alpha(one))
        problem = "sigma = -log alpha is infinite at t = 1 under this schedule"
        remedy = "use conditioning='time', or a reference schedule such as 'mdlm:loglinear'"
        require(self.conditioning != "sigma" or end > 0, "conditioning", problem, remedy)
        after = ", the last one of which is none of its own" if self.partitions else ""
        problem = f"must be one of the network's input ids 0..{self._ids - 1}{after}, "
        fits = isinstance(self.mask_id, int) and 0 <= self.mask_id < self._ids
        require(fits, "mask_id", f"{problem}got {self.mask_id!r}")

    def check_corruption(self, corruption: Corruption) -> None:
        """Refuse a corruption without a time if the network is conditioned on the time."""
        kind = type(corruption).__name__
        problem = f"{kind} hides tokens without a time, but the network reads one"
        remedy = "choose conditioning none, or a corruption with a time, such as continuous"
        require(not self.timed or corruption.timed, "corruption", problem, remedy)

    @property
    def vocab_size(self) -> int:
        return max(self.network.config.vocab_size, self.mask_id + 1)

    @property
    def timed(self) -> bool:
        return self.conditioning != "none"

    @property
    def bound_corruption(self) -> Corruption:
        """The method's corruption if its weights give a bound, else one whose weights do."""
        if self.corruption.bound:
            return self.corruption
        return Continuous(self.schedule) if self.timed else Subset()

    @abstractmethod
    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """The parameterization: logits to log x_theta, with no mass on the mask."""

    def predict(
        self,
        tokens: Tokens,
        revealed: Marks,
        rows: Indices,
        positions: Indices,
        time: RowTimes | None = None,
        label: Labels | None = None,
        *,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N V"]:
        """log x_theta at the queried positions, given the revealed tokens."""
        seen = tokens, revealed, Queries(rows, positions), time, label, layout
        return self.log_probabilities(query_hidden(self, *seen))

    def scalar(self, time: Tensor | None) -> Tensor | None:
        """The scalar that the network is conditioned on: 1000 t, -log alpha(t), or None."""
        if not self.timed:
            return None
        if time is None:
            raise InputError("time", "this network is conditioned on the time, and none was given")
        if self.conditioning == "time":
            return (TIME_SCALE * time).float()
        return -torch.log(self.schedule.alpha(time)).float()

    def loss(
        self, batch: Batch, noise: Noise, step: int = 0, *, corruption: Corruption | None = None
    ) -> Loss:
        """Hide tokens by the corruption, predict them, and take the weighted cross-entropy.

        `noise.samples` numbers the rows within a global batch, so that several processes share one
        low-discrepancy set of times. Padding is never hidden and never counts. `corruption`
        replaces the method's own corruption.
        """
        batch = check_batch(batch, self).padded_with(self.mask_id)
        corruption = corruption or self.corruption
        return self.loss_given(batch, corruption.draw(batch.real, noise, step, batch.size))

    def loss_given(self, batch: Batch, drawn: Corrupted) -> Loss:
        """sum over hidden l of w_l * -log x_theta^l, for a given choice of hidden tokens."""
        hidden, queries = drawn.masked, hidden_queries(self, batch.tokens, drawn.masked)
        seen = batch.tokens, ~hidden, queries, drawn.times, batch.label, batch.layout()
        output = query_hidden(self, *seen, fused=True)
        counted = hidden if queries_everywhere(self, batch.tokens) else None
        return weighted_cross_entropy(self, output, queries, batch, drawn.weights, counted)

    @property
    def is_bounding(self) -> bool:
        return self.corruption.bound

    def bound_ends(self, corruption: Corruption | None = None) -> float:
        """Prior and reconstruction terms per token: 0 unless the schedule is truncated."""
        corruption = corruption or self.bound_corruption
        schedule = getattr(corruption, "schedule", None)
        if not corruption.timed or schedule is None:  # without a time there are no ends
            return 0.0
        vocabulary = self.network.config.outputs
        if self.mask_id < vocabulary:
            vocabulary -= 1
        return prior_nats(schedule, 1, vocabulary) + reconstruction_nats(schedule, 1, vocabulary)

    def needs_host_sync(self, tokens: Tokens) -> bool:
        if self.all_positions:
            return not (
                self.corruption.recordable and self.network.recordable and self.network.packed
            )
        return not (self.corruption.recordable and queries_everywhere(self, tokens))
