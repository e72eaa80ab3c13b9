"""The weighted cross-entropy of a network's predictions.

    sum_l w_l * -log x_theta^l, divided by the number of real tokens

It is computed from log-probabilities or, by kernels that never store the logits of a whole batch,
from the inputs of the network's head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from partita.contracts.layouts import Queries
from partita.contracts.loss import Loss
from partita.kernels.cross_entropy import weighted_nats


def weighted_cross_entropy(
    log_probs: Float[Tensor, "N V"],
    queries: Queries,
    tokens: Int64[Tensor, "B L"],
    weights: Float[Tensor, "B L"],
    real: Bool[Tensor, "B L"],
) -> Loss:
    """sum of w * -log p(x) over the queried tokens, divided by the number of real tokens."""
    target = tokens[queries.rows, queries.positions]
    nats = -log_probs.gather(-1, target[:, None])[:, 0]
    return _weighted(nats, queries, tokens, weights, real)


def projected_cross_entropy(
    vectors: Float[Tensor, "N W"],
    head: nn.Linear,
    queries: Queries,
    tokens: Int64[Tensor, "B L"],
    weights: Float[Tensor, "B L"],
    real: Bool[Tensor, "B L"],
    forbidden: int,
) -> Loss:
    """The same from the inputs of the head, without storing the logits of the whole batch.

    Only the objective can be differentiated. `forbidden` is an output that gets no mass.
    """
    target = tokens[queries.rows, queries.positions]
    at = weights[queries.rows, queries.positions]
    forbidden = forbidden if forbidden < head.out_features else -1
    total, nats = weighted_nats(vectors, head.weight, head.bias, target, at, forbidden)
    loss = _weighted(nats, queries, tokens, weights, real)
    return replace(loss, objective=total / loss.tokens)


def _weighted(
    nats: Tensor, queries: Queries, tokens: Tensor, weights: Tensor, real: Tensor
) -> Loss:
    """Put the nats at their positions in the batch, weight them and sum them up."""
    empty = nats.new_zeros(tokens.shape)
    cross_entropy = empty.index_put((queries.rows, queries.positions), nats)
    counted = torch.zeros_like(real).index_put(
        (queries.rows, queries.positions), torch.ones_like(queries.rows, dtype=torch.bool)
    )
    per_token = cross_entropy * weights.to(nats.dtype)
    count = real.sum()
    return Loss(per_token.sum() / count, per_token, cross_entropy, counted, count)
