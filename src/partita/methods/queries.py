"""How a loss queries its network: at which positions, and who applies the head.

A paper asks for x_theta at hidden positions, or of both groups of a partition. What it gets is a
`Prediction`, whose weighted cross-entropy is the loss. Speed is decided here, and nothing here
changes a number. Two things make a step slow on a GPU. To find the hidden tokens, a program must
wait for the GPU, and a step that waits cannot be recorded and replayed; so a small head is queried
at all positions. And the logits of a large vocabulary take more memory than all the rest; so
kernels apply the head and never hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.packed import places_of
from partita.devices import readable
from partita.methods.contracts import TextMethod
from partita.methods.weighing import projected_cross_entropy, weighted_cross_entropy
from partita.networks.base import PartitionNetwork
from partita.networks.transformer import Transformer

SMALL_HEAD = 0.25  # of the weights of the blocks


@dataclass(frozen=True)
class Prediction:
    """What a network says at some positions: logits, or what its head makes them of."""

    method: Any
    """One with a network and `log_probabilities`."""
    values: Float[Tensor, "N _"]
    queries: Queries
    hidden: Bool[Tensor, "B L"] | None = None
    """The positions that count, where more were queried."""

    def cross_entropy(self, batch: Batch, weights: Float[Tensor, "B L"]) -> Loss:
        """sum_l w_l * -log x_theta^l, divided by the number of real tokens."""
        if self.hidden is None:
            return self._weighed(batch.tokens, weights, batch.real)
        some_token = int(self.method.mask_id == 0)  # a visible position may hold a mask: padding
        tokens, weights = batch.tokens.where(self.hidden, some_token), weights.where(self.hidden, 0)
        return self._weighed(tokens, weights, batch.real).of(self.hidden)

    def _weighed(self, tokens: Tensor, weights: Tensor, real: Tensor) -> Loss:
        if not fuses(self.method):
            log_probs = self.method.log_probabilities(self.values)
            return weighted_cross_entropy(log_probs, self.queries, tokens, weights, real)
        head, mask = self.method.network.head, self.method.mask_id
        return projected_cross_entropy(self.values, head, self.queries, tokens, weights, real, mask)


# What a network reads ------------------------------------------------------------------------


def ask(method: Any, *read: Tensor, fused: bool, **told: Any) -> Tensor:  # noqa: ANN401 - as in Prediction
    """A network's logits; or, for a loss that applies the head itself, what the head reads."""
    how = {"project": False} if fused and fuses(method) else {}
    answer: Tensor = method.network(*read, **told, **how)
    return answer


def ask_hidden(
    method: Any,  # noqa: ANN401 - a masked method
    tokens: Int64[Tensor, "B L"],
    revealed: Bool[Tensor, "B L"],
    queries: Queries,
    time: Float[Tensor, "B"] | None,
    label: Int64[Tensor, "B"] | None,
    layout: Layout,
    *,
    fused: bool = False,
) -> Float[Tensor, "N _"]:
    """What a network says of hidden tokens: one with masks in their places, or with groups."""
    if isinstance(method.network, PartitionNetwork):  # the revealed ones are the other group
        seen = revealed & (tokens != method.mask_id)
        told = {"queries": queries, "label": label, "layout": layout}
        return ask(method, tokens, seen, fused=fused, **told)
    z = torch.where(revealed, tokens, method.mask_id)
    told = {"queries": queries, "scalar": method.scalar(time), "label": label}
    told |= {} if layout is DENSE else {"layout": layout}  # networks need not know of layouts
    return ask(method, z, fused=fused, **told)


def predict_hidden(
    method: Any,  # noqa: ANN401 - a masked method
    batch: Batch,
    hidden: Bool[Tensor, "B L"],
    time: Float[Tensor, "B"] | None,
) -> Prediction:
    """x_theta of the hidden tokens, for a loss."""
    queries = hidden_queries(method, batch.tokens, hidden)
    seen = batch.tokens, ~hidden, queries, time, batch.label, batch.layout()
    values = ask_hidden(method, *seen, fused=True)
    more = asks_everywhere(method, batch.tokens)
    return Prediction(method, values, queries, hidden if more else None)


def ask_groups(
    method: Any,  # noqa: ANN401 - a partition method
    batch: Batch,
    groups: Bool[Tensor, "B L"],
    *,
    fused: bool = False,
) -> tuple[Float[Tensor, "N _"], Queries]:
    """What a network says of each real token given the other group, and where they stand.

    A network with groups is asked once. One with masks is asked with each half hidden: at its
    hidden tokens, or both times at all positions, of which one answer is chosen.
    """
    layout = batch.layout()
    if isinstance(method.network, PartitionNetwork):
        how: dict[str, Any] = {"project": False} if fused and fuses(method) else {}
        how |= {"real": batch.is_token, "label": batch.label, "layout": layout}
        both: tuple[Tensor, Queries] = method.network.both(batch.tokens, groups, **how)
        return both

    def ask_half(hidden: Tensor, queries: Queries) -> Tensor:
        seen = batch.tokens, ~hidden, queries, None, batch.label, layout
        return ask_hidden(method, *seen, fused=fused)

    halves = groups & batch.real, ~groups & batch.real
    if asks_twice(method, batch.tokens):
        queries = places_of(batch.is_token, batch.tokens)
        first, second = (ask_half(hidden, queries) for hidden in halves)
        own = groups[queries.rows, queries.positions, None]
        return torch.where(own, first, second), queries
    asked = [places_of(hidden, batch.tokens) for hidden in halves]
    answers = [ask_half(hidden, queries) for hidden, queries in zip(halves, asked, strict=True)]
    rows, positions = (torch.cat(places) for places in zip(*asked, strict=True))
    return torch.cat(answers), Queries(rows, positions)


def predict_groups(method: Any, batch: Batch, groups: Bool[Tensor, "B L"]) -> Prediction:  # noqa: ANN401 - a partition method
    """x_theta(x; g) of every real token, for a loss."""
    return Prediction(method, *ask_groups(method, batch, groups, fused=True))


# What is fast --------------------------------------------------------------------------------


def fuses(method: Any) -> bool:  # noqa: ANN401 - as in Prediction
    """Whether a loss takes over the head of its network, and never holds all logits."""
    both: bool = method.plain_softmax and method.network.fuses
    return both


def hidden_queries(
    method: TextMethod, tokens: Int64[Tensor, "B L"], hidden: Bool[Tensor, "B L"]
) -> Queries:
    """Where a network is queried for hidden tokens: there, or everywhere if that is faster."""
    return places_of(None if asks_everywhere(method, tokens) else hidden, tokens)


def asks_everywhere(method: TextMethod, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether a loss queries visible positions too, and leaves their answers out.

    To find the hidden ones, a program on a GPU must wait for it, and its steps cannot be captured.
    Where the head is small beside the blocks (about 12 W^2 weights each), it is asked everywhere
    instead: where half of the tokens are hidden, that is an eighth more work at most. A loss that
    holds the logits of all positions does so only if they take no more memory than a layer.
    """
    if method.everywhere is not None:
        return method.everywhere
    network: object = method.network  # type: ignore[attr-defined]
    if readable(tokens) or not isinstance(network, Transformer):
        return False
    blocks = 12 * network.config.depth * network.config.width
    most = SMALL_HEAD * blocks if fuses(method) else network.config.width
    return network.config.outputs <= most


def asks_twice(method: TextMethod, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether both halves are queried at all positions.

    What a fused loss asks for is what its head reads: the head itself is applied once.
    """
    masks = isinstance(method.network, Transformer)  # type: ignore[attr-defined]
    return (not readable(tokens) and masks and fuses(method)) or asks_everywhere(method, tokens)


def can_be_recorded(method: object, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether a training step of such tokens may be recorded once and replayed."""
    if not isinstance(method, TextMethod) or not method.recordable:
        return False
    return not method.needs_host_sync(tokens)
