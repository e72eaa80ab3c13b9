"""The Partition Transformer with L x L attention masks: the reference for packing.

The library sorts tokens into sequences. This one has the same parameters, dense attention, and
sorts nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, DenseLayout, Layout, Queries
from partita.contracts.packed import NOWHERE, PackedBatch, indices_of
from partita.methods.inference import query_groups
from partita.networks.conditions import RowCondition
from partita.networks.partition import PartitionTransformer


def predict_both(method, batch, groups) -> tuple[Tensor, Queries]:
    """log x_theta(x; g) for every real token given the other group, and their positions."""
    logits, queries = query_groups(method, batch, groups, fused=False)
    return method.log_probabilities(logits), queries


def both(
    network: PartitionTransformer, *inputs: Tensor, packed: bool = True, **given
) -> tuple[Tensor, Queries]:
    """Logits of both groups and their positions: by the network itself, or by masks."""
    return network.both(*inputs, **given) if packed else both_by_masks(network, *inputs, **given)


def both_by_masks(
    network: PartitionTransformer,
    tokens: Tensor,
    groups: Tensor,
    *,
    real: Tensor | None = None,
    scalar: Tensor | None = None,
    label: Tensor | None = None,
    layout: Layout = DENSE,
) -> tuple[Tensor, Queries]:
    """`PartitionTransformer.both`, computed densely."""
    documents = PackedBatch.of_rows(tokens, layout)
    number = documents.sequence_ids.view(tokens.shape)
    positions = documents.position_ids.view(tokens.shape)
    group, places = 2 * number + groups.long(), indices_of(real, tokens)
    condition = network.condition(scalar, label, tokens.shape[0])
    readable = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    x = network.embed(tokens.where(readable, 0))
    read, group_read = positions, group
    if network.registers is not None:
        slots, there = _slots(number)
        each = network.config.registers
        added = network.registers.repeat(slots.shape[1], 1).expand(len(x), -1, -1)
        slots, there = (y.repeat_interleave(each, 1) for y in (slots, there))
        x = torch.cat([x, added.to(x.dtype)], 1)
        read = F.pad(positions, (0, slots.shape[1]), value=NOWHERE)
        group_read, readable = torch.cat([group, slots], 1), torch.cat([readable, there], 1)
    same = (group_read[:, :, None] == group_read[:, None, :]) & readable[:, None, :]
    other = (group[:, :, None] ^ 1 == group_read[:, None, :]) & readable[:, None, :]
    vectors = None if condition is None else condition[:, None]
    memory = network._encode(x, read, DenseLayout(same), vectors)
    aggregates = network.swap.aggregates(
        memory[readable], group_read[readable], 2 * documents.count
    )
    aggregate = None if aggregates is None else aggregates[group ^ 1]
    hidden = network._decode(memory, read, positions, aggregate, DenseLayout(other), vectors)
    conditioned = None if condition is None else RowCondition(condition, places.rows)
    return network._project(hidden[places], conditioned), places


def _slots(number: Tensor) -> tuple[Tensor, Tensor]:
    """Both groups of every document of a row side by side, and which of them exist."""
    low, high = number.amin(1, keepdim=True), number.amax(1, keepdim=True)
    slots = 2 * low + torch.arange(2 * int((high - low).max() + 1), device=low.device)
    return slots, slots <= 2 * high + 1
