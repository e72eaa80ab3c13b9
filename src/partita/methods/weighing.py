"""The weighted cross-entropy of a network's predictions, which is the loss of most methods here."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.contracts.loss import Loss
from partita.contracts.shapes import Marks
from partita.kernels.cross_entropy import weighted_nats


def fuses(method: Any) -> bool:  # noqa: ANN401 - with `network` and `log_probabilities`
    """Whether the loss applies the network's head itself, without storing all logits."""
    both: bool = method.plain_softmax and method.network.fuses
    return both


def weighted_cross_entropy(
    method: Any,  # noqa: ANN401 - with `network` and `log_probabilities`
    output: Float[Tensor, "N _"],
    queries: Queries,
    batch: Batch,
    weights: Float[Tensor, "B L"],
    hidden: Marks | None = None,
) -> Loss:
    """sum_l w_l * -log x_theta^l over the queried tokens, divided by the number of real tokens.

    `output` is the network's: its logits or, for a fused loss, the inputs of its head (kernels
    then never store the logits of the whole batch, and only the objective can be differentiated).
    `hidden` marks the tokens that count, if more are queried.
    """
    tokens = batch.tokens
    if hidden is not None:
        some_token = int(method.mask_id == 0)  # a visible position may hold a mask: padding
        tokens, weights = tokens.where(hidden, some_token), weights.where(hidden, 0)
    target, total = tokens[queries.rows, queries.positions], None
    if fuses(method):
        head, at = method.network.head, weights[queries.rows, queries.positions]
        forbidden = method.mask_id if method.mask_id < head.out_features else -1
        total, nats = weighted_nats(output, head.weight, head.bias, target, at, forbidden)
    else:
        nats = -method.log_probabilities(output).gather(-1, target[:, None])[:, 0]
    cross_entropy = nats.new_zeros(tokens.shape).index_put(queries, nats)
    counted = torch.zeros_like(batch.real).index_put(
        queries, torch.ones_like(target, dtype=torch.bool)
    )
    per_token = cross_entropy * weights.to(nats.dtype)
    count = batch.real.sum()
    objective = (per_token.sum() if total is None else total) / count
    loss = Loss(objective, per_token, cross_entropy, counted, count)
    return loss if hidden is None else loss.of(hidden)
