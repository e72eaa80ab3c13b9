"""PGM: Partition Generative Modeling, masked modelling without masks (Deschenaux et al., 2025).

Each token of a sequence joins group 1 with probability p_t = 1 - alpha_t and group 0 otherwise.
The network predicts every token from the tokens of the other group (section 3):

    L_PGM = E [ sum_i w^PGM(g, t)_i CE(x_theta(x; g)_i, x_i) ],    w^PGM = w(t)   if g_i = 1
                                                                           w^c(t) if g_i = 0

Group 1 as predicted from group 0 is a masked sequence as MDLM knows it, with its weight w(t) =
-alpha'_t / (1 - alpha_t). Group 0 as predicted from group 1 is the complementary one, hidden with
probability alpha_t: a bound for it has w^c(t) = -alpha'_t / alpha_t. The paper writes w(1 - t),
which is the same where alpha(1 - t) = 1 - alpha(t) and no bound elsewhere. Half of the sum is the
mean of two valid bounds: that is what training minimises, and what evaluation reports by default.

The default law has the time integrated out (`corruption.py`, subset): the size k of group 1 is
uniform between 0 and L (the ends have half the chance and twice the weight), and the weights are
L/k and L/(L-k), bounded where 1/t and 1/(1-t) are not.

Sampling encodes the revealed tokens and decodes the positions asked for; there is no mask token.
The samplers are those of the masked family (algorithm 1 is `ordered` in random order).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.errors import require, require_int
from partita.methods.asking import head_of, plain_softmax
from partita.methods.base import METHODS, About
from partita.methods.masked_method import MaskedMethod
from partita.methods.mdlm import subs
from partita.methods.weighing import weighed
from partita.networks.base import PartitionNetwork
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.corruption import Law, Partition, PartitionLaw
from partita.randomness import Noise


class PartitionMethod(MaskedMethod):
    """A masked method that learns from both groups of a partition at once."""

    @abstractmethod
    def _ask_both(
        self,
        tokens: Tensor,
        groups: Tensor,
        valid: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        **how: Any,
    ) -> tuple[Tensor, Queries]:
        """Logits of every valid token, and where they stand."""

    def predict_both(
        self,
        tokens: Int64[Tensor, "B L"],
        groups: Bool[Tensor, "B L"],
        valid: Bool[Tensor, "B L"] | None,
        label: Int64[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """log x_theta(x; g) of every valid token from the other group, and where they stand."""
        logits, queries = self._ask_both(tokens, groups, valid, label, layout)
        return self.log_probabilities(logits), queries

    def check_law(self, law: Law) -> None:
        """Both groups need weights, and neither can be told a time: the other one has its own."""
        require(
            not self.timed,
            "conditioning",
            f"is {self.conditioning!r}, but the two groups of a partition are at different times",
            "leave it out: the network is not told the time",
        )
        problem = f"{type(law).__name__} has no weights for the second group of a partition"
        require(isinstance(law, PartitionLaw), "law", problem, "give it a method `partition`")

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
        groups: int = 2,
    ) -> Loss:
        """L_PGM / 2 by a partition that the law draws; the arguments are those of MDLM's loss.

        With `groups=1` only group 1 is predicted: MDLM's estimate of the same bound. (Under the
        law "discrete" the second group's is the bound of another chain, the complementary one.)
        """
        require_int(groups, "groups", 1, 2)
        if groups == 1:
            return super().loss(
                tokens, noise, step, batch=batch, valid=valid, label=label, law=law, layout=layout
            )
        tokens, real = self._ready(tokens, valid)
        chosen = self.law if law is None else law
        self.check_law(chosen)
        drawn = chosen.partition(real, noise, step, batch or tokens.shape[0])  # type: ignore[attr-defined]
        return self.loss_of(tokens, drawn, valid, label, layout=layout)

    def loss_of(
        self,
        tokens: Int64[Tensor, "B L"],
        partition: Partition,
        valid: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        *,
        layout: Layout = DENSE,
    ) -> Loss:
        """The loss for tokens that are already partitioned."""
        seen = tokens, partition.groups, valid, label, layout
        answer, queries = self._ask_both(*seen, **head_of(self))
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        return weighed(self, answer, queries, tokens, partition.weights / 2, real)


@METHODS.register("pgm")
class PGM(PartitionMethod):
    """Partition generative modelling with a network that keeps the groups apart."""

    about = About(
        paper="Partition Generative Modeling: Masked Modeling without Masks"
        " (Deschenaux et al., 2025)",
        equation="section 3",
        loss="cross-entropy of each group of a partition given the other, a bound",
        choices={
            "schedule": "alpha(t); see the list of schedules",
            "law": "how tokens are parted and weighed: subset, continuous, discrete, clipped",
        },
    )
    network: PartitionNetwork  # type: ignore[assignment]
    default_schedule = "log-linear"
    default_law = "subset"
    default_conditioning = "none"
    partitions = True
    reads = "groups"
    all_positions = True
    reads_padding = False

    @classmethod
    def _new_network(cls, options: TransformerOptions, tokens: int, timed: bool) -> nn.Module:
        """A network for the real tokens alone: it has no mask."""
        network: nn.Module = new_network(options, cls.reads, vocab_size=tokens, time=timed)
        return network

    def _default_mask_id(self) -> int:
        """What samplers write where nothing is known yet: one more than the network's ids."""
        return self.network.config.vocab_size

    @property
    def vocab_size(self) -> int:
        return max(self.network.config.vocab_size, self.mask_id + 1)

    @staticmethod
    def _check_kind(network: object) -> None:
        problem = f"{type(network).__name__} does not keep the groups of a partition apart"
        fits = isinstance(network, PartitionNetwork)
        require(fits, "network", problem, "use PartitionTransformer")

    def _check_network(self) -> None:
        ids = self.network.config.vocab_size
        require(
            isinstance(self.mask_id, int) and 0 <= self.mask_id <= ids,
            "mask_id",
            f"must be one of the network's ids, or {ids}, the one after them; got {self.mask_id!r}",
        )
        super()._check_network()

    @plain_softmax
    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # for networks that have a logit for a mask after all

    def _ask(
        self,
        tokens: Tensor,
        revealed: Tensor,
        asked: Queries,
        time: Tensor | None,  # noqa: ARG002 - never told the time
        label: Tensor | None,
        layout: Layout,
        **how: Any,
    ) -> Tensor:
        """The revealed tokens are the other group of those that are asked for."""
        seen = revealed & (tokens != self.mask_id)
        return self.network(tokens, seen, queries=asked, label=label, layout=layout, **how)

    def _ask_both(
        self,
        tokens: Tensor,
        groups: Tensor,
        valid: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        **how: Any,
    ) -> tuple[Tensor, Queries]:
        return self.network.both(tokens, groups, real=valid, label=label, layout=layout, **how)
