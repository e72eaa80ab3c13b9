"""Exact likelihood in one order of generation, for masked models that write token by token.

A masked model that reveals its tokens one after the other is an autoregressive model in any order
o:

    log p(x) = sum_i log p(x_o(i) | x_o(1), ..., x_o(i-1))

That is the distribution of the sampler `ordered`. Every term is computed, so nothing is estimated.
The mean over all orders is the bound that `nelbo` estimates for a model that does not depend on the
time (MD4, "masked diffusion as any-order autoregression"); single orders may cost less, or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.estimate import Estimate
from partita.contracts.shapes import Labels, Tokens
from partita.errors import require, require_int
from partita.likelihood.bounds import require_finite
from partita.methods.base import check_batch
from partita.methods.contracts import Denoiser
from partita.moved import old_keywords
from partita.randomness import Noise
from partita.samplers.front import as_labels, evaluating
from partita.samplers.planned import Order, order_ranks
from partita.samplers.state import SamplerState


@old_keywords(valid="is_token")
def order_likelihood(
    model: object,
    tokens: Int64[Tensor, "N L"],
    order: Order = "left-to-right",
    *,
    is_token: Bool[Tensor, "N L"] | None = None,
    label: int | Int64[Tensor, "N"] | None = None,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """The exact nats per token of sequences generated in an order; one network call per token.

    `order` is as for the sampler `ordered`: "left-to-right", "random" (one per sequence, by the
    seed), or all positions in the order in which they are revealed, for sequences of one length.
    `is_token` is False for padding, which must come after tokens. `progress` is called with the
    share of the work that is done, from 0 to 1.
    """
    require_ordered(model)
    assert isinstance(model, Denoiser)
    is_token = check_batch(Batch.of(tokens, is_token=is_token), model).real
    require_int(batch_size, "batch_size")
    lengths, labels = is_token.sum(-1), as_labels(label, tokens.shape[0], tokens.device)
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    first = bool((is_token == (positions < lengths[:, None])).all())
    require(first, "is_token", "has padding before tokens", "put the tokens of a row first")
    count, done, total = int(lengths.sum()), 0, torch.zeros((), dtype=torch.float64)
    require(count > 0, "is_token", "marks no token as real")
    with evaluating(model), torch.no_grad():
        for length in torch.unique(lengths[lengths > 0]).tolist():  # so that none reads padding
            for rows in (lengths == length).nonzero()[:, 0].split(batch_size):
                given = None if labels is None else labels[rows]
                nats = _nats(model, tokens[rows, :length], order, Noise(seed, rows), given)
                total += nats.sum().cpu()
                done += len(rows) * length
                if progress is not None:
                    progress(done / count)
    require_finite(total)
    return Estimate(float(total) / count, 0.0, count)


def require_ordered(model: object) -> None:
    """Raise an InputError unless the model is a masked one, which can use any order."""
    problem = f"{type(model).__name__} does not reveal tokens in an order"
    remedy = "it is for mdlm, mdlm-complementary, md4, maskgit and pgm"
    remedy += "; a loaded model has a `method`"
    require(isinstance(model, Denoiser), "order", problem, remedy)


def _nats(
    model: Denoiser, tokens: Tokens, order: Order, noise: Noise, label: Labels | None
) -> Float64[Tensor, "B"]:
    """Nats of each sequence of a batch."""
    batch, length = tokens.shape
    state = SamplerState.blank(batch, length, model.mask_id, tokens.device)
    ranks, rows = order_ranks(noise, state, order), torch.arange(batch, device=tokens.device)
    nats = torch.zeros(batch, dtype=torch.float64, device=tokens.device)
    for step in range(length):
        positions = (ranks == step).long().argmax(-1)
        visible = torch.full((batch,), step / length, dtype=torch.float64, device=tokens.device)
        time = model.schedule.inverse(visible) if model.timed else None
        log_probs = model.predict(state.tokens, state.revealed, rows, positions, time, label)
        target = tokens[rows, positions]
        nats -= log_probs.double().gather(-1, target[:, None])[:, 0]
        state.write(rows, positions, target)
    return nats
