"""Predictions for a loss: at which positions a network makes them, and with logits or without.

A loss needs x_theta at hidden positions, or for both groups of a partition. The choices made here
affect speed and memory, never the values. Two things make a step slow on a GPU. Finding the hidden
tokens waits for the GPU, and a step that waits cannot be recorded and replayed; so a small head is
applied at all positions. And the logits of a large vocabulary take more memory than everything
else; so fused kernels apply the head without storing the logits (`weighing.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.layouts import Layout, Queries
from partita.contracts.packed import indices_of
from partita.contracts.shapes import Labels, Marks, RowTimes, Tokens
from partita.devices import readable
from partita.methods.contracts import TextMethod
from partita.methods.weighing import fuses
from partita.networks.transformer import Transformer

SMALL_HEAD = 0.25  # a head is small if it has at most this share of the blocks' weights


def query_hidden(
    method: Any,  # noqa: ANN401 - a masked method
    tokens: Tokens,
    revealed: Marks,
    queries: Queries,
    time: RowTimes | None,
    label: Labels | None,
    layout: Layout,
    *,
    fused: bool = False,
) -> Float[Tensor, "N _"]:
    """Query the network given the revealed tokens; the others are masked, or the other group."""
    given: dict[str, Any] = {"queries": queries, "label": label}
    given |= {"project": False} if fused and fuses(method) else {}
    if method.partitions:
        seen = revealed & (tokens != method.mask_id)
        output: Tensor = method.network(tokens, seen, layout=layout, **given)
    else:
        z = torch.where(revealed, tokens, method.mask_id)
        output = method.logits(z, layout, scalar=method.scalar(time), **given)
    return output


def query_groups(
    method: Any,  # noqa: ANN401 - a partition method
    batch: Batch,
    groups: Marks,
    *,
    fused: bool = True,
) -> tuple[Float[Tensor, "N _"], Queries]:
    """Query the network for every real token given the other group; also returns the positions.

    A partition network is called once. A network with masks is called with each group hidden: it
    is queried at the hidden tokens, or both times at all positions, and the right half is kept.
    """
    layout = batch.layout()
    if method.partitions:
        options: dict[str, Any] = {"project": False} if fused and fuses(method) else {}
        options |= {"real": batch.is_token, "label": batch.label, "layout": layout}
        both: tuple[Tensor, Queries] = method.network.both(batch.tokens, groups, **options)
        return both

    def query_half(hidden: Tensor, queries: Queries) -> Tensor:
        seen = batch.tokens, ~hidden, queries, None, batch.label, layout
        return query_hidden(method, *seen, fused=fused)

    halves = groups & batch.real, ~groups & batch.real
    if queries_twice(method, batch.tokens):
        queries = indices_of(batch.is_token, batch.tokens)
        first, second = (query_half(hidden, queries) for hidden in halves)
        own = groups[queries.rows, queries.positions, None]
        return torch.where(own, first, second), queries
    queried = [indices_of(hidden, batch.tokens) for hidden in halves]
    outputs = [query_half(hidden, queries) for hidden, queries in zip(halves, queried, strict=True)]
    rows, positions = (torch.cat(indices) for indices in zip(*queried, strict=True))
    return torch.cat(outputs), Queries(rows, positions)


def hidden_queries(method: TextMethod, tokens: Tokens, hidden: Marks) -> Queries:
    """The positions to query for the hidden tokens: those, or all if that is faster."""
    return indices_of(None if queries_everywhere(method, tokens) else hidden, tokens)


def queries_everywhere(method: TextMethod, tokens: Tokens) -> bool:
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


def queries_twice(method: TextMethod, tokens: Tokens) -> bool:
    """Whether both halves are queried at all positions.

    A fused loss queries the inputs of the head; the head itself is applied once.
    """
    masks = isinstance(method.network, Transformer)  # type: ignore[attr-defined]
    return (not readable(tokens) and masks and fuses(method)) or queries_everywhere(method, tokens)


def can_be_recorded(method: object, tokens: Tokens) -> bool:
    """Whether a training step on such tokens can be recorded once and replayed."""
    if not isinstance(method, TextMethod) or not method.recordable:
        return False
    return not method.needs_host_sync(tokens)
