"""How a loss queries its network: at which positions, and whether it computes the logits.

A loss needs x_theta at hidden positions, or for both groups of a partition. The functions here
return a `Prediction`, whose weighted cross-entropy is the loss. Their choices affect speed and
memory, never the values. Two things make a step slow on a GPU. Finding the hidden tokens waits for
the GPU, and a step that waits cannot be recorded and replayed; so a small head is applied at all
positions. And the logits of a large vocabulary take more memory than everything else; so fused
kernels apply the head without storing the logits.
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

SMALL_HEAD = 0.25  # a head is small if it has at most this share of the blocks' weights


@dataclass(frozen=True)
class Prediction:
    """A network's output at the queried positions: logits, or the inputs of its head."""

    method: Any
    """A method with `network` and `log_probabilities`."""
    values: Float[Tensor, "N _"]
    queries: Queries
    hidden: Bool[Tensor, "B L"] | None = None
    """The positions that count in the loss; None if they are the queried ones."""

    def cross_entropy(self, batch: Batch, weights: Float[Tensor, "B L"]) -> Loss:
        """sum_l w_l * -log x_theta^l, divided by the number of real tokens."""
        if self.hidden is None:
            return self._loss(batch.tokens, weights, batch.real)
        some_token = int(self.method.mask_id == 0)  # a visible position may hold a mask: padding
        tokens, weights = batch.tokens.where(self.hidden, some_token), weights.where(self.hidden, 0)
        return self._loss(tokens, weights, batch.real).of(self.hidden)

    def _loss(self, tokens: Tensor, weights: Tensor, real: Tensor) -> Loss:
        if not fuses(self.method):
            log_probs = self.method.log_probabilities(self.values)
            return weighted_cross_entropy(log_probs, self.queries, tokens, weights, real)
        head, mask = self.method.network.head, self.method.mask_id
        return projected_cross_entropy(self.values, head, self.queries, tokens, weights, real, mask)


# What a network reads ------------------------------------------------------------------------


def ask(method: Any, *inputs: Tensor, fused: bool, **conditions: Any) -> Tensor:  # noqa: ANN401 - as in Prediction
    """Call the network: its logits or, for a fused loss, the inputs of its head."""
    options = {"project": False} if fused and fuses(method) else {}
    output: Tensor = method.network(*inputs, **conditions, **options)
    return output


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
    """Query the network given the revealed tokens; the others are masked, or the other group."""
    if isinstance(method.network, PartitionNetwork):
        seen = revealed & (tokens != method.mask_id)
        conditions = {"queries": queries, "label": label, "layout": layout}
        return ask(method, tokens, seen, fused=fused, **conditions)
    z = torch.where(revealed, tokens, method.mask_id)
    conditions = {"queries": queries, "scalar": method.scalar(time), "label": label}
    conditions |= {} if layout is DENSE else {"layout": layout}  # networks may not support layouts
    return ask(method, z, fused=fused, **conditions)


def predict_hidden(
    method: Any,  # noqa: ANN401 - a masked method
    batch: Batch,
    hidden: Bool[Tensor, "B L"],
    time: Float[Tensor, "B"] | None,
) -> Prediction:
    """Predict the hidden tokens, for a loss."""
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
    """Query the network for every real token given the other group; also returns the positions.

    A partition network is called once. A network with masks is called with each group hidden: it
    is queried at the hidden tokens, or both times at all positions, and the right half is kept.
    """
    layout = batch.layout()
    if isinstance(method.network, PartitionNetwork):
        options: dict[str, Any] = {"project": False} if fused and fuses(method) else {}
        options |= {"real": batch.is_token, "label": batch.label, "layout": layout}
        both: tuple[Tensor, Queries] = method.network.both(batch.tokens, groups, **options)
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
    queried = [places_of(hidden, batch.tokens) for hidden in halves]
    outputs = [ask_half(hidden, queries) for hidden, queries in zip(halves, queried, strict=True)]
    rows, positions = (torch.cat(indices) for indices in zip(*queried, strict=True))
    return torch.cat(outputs), Queries(rows, positions)


def predict_groups(method: Any, batch: Batch, groups: Bool[Tensor, "B L"]) -> Prediction:  # noqa: ANN401 - a partition method
    """Predict every real token from the other group, for a loss."""
    return Prediction(method, *ask_groups(method, batch, groups, fused=True))


# What is fast --------------------------------------------------------------------------------


def fuses(method: Any) -> bool:  # noqa: ANN401 - as in Prediction
    """Whether the loss applies the network's head itself, without storing all logits."""
    both: bool = method.plain_softmax and method.network.fuses
    return both


def hidden_queries(
    method: TextMethod, tokens: Int64[Tensor, "B L"], hidden: Bool[Tensor, "B L"]
) -> Queries:
    """The positions to query for the hidden tokens: those, or all if that is faster."""
    return places_of(None if asks_everywhere(method, tokens) else hidden, tokens)


def asks_everywhere(method: TextMethod, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether a loss queries visible positions too, and ignores their predictions.

    Finding the hidden positions waits for the GPU, and a step that waits cannot be captured. If the
    head is small beside the blocks (about 12 W^2 weights each), it is applied everywhere instead:
    with half of the tokens hidden, that is at most an eighth more work. A loss that stores the
    logits of all positions does so only if they take no more memory than a layer.
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

    A fused loss queries the inputs of the head; the head itself is applied once.
    """
    masks = isinstance(method.network, Transformer)  # type: ignore[attr-defined]
    return (not readable(tokens) and masks and fuses(method)) or asks_everywhere(method, tokens)


def can_be_recorded(method: object, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether a training step on such tokens can be recorded once and replayed."""
    if not isinstance(method, TextMethod) or not method.recordable:
        return False
    return not method.needs_host_sync(tokens)
