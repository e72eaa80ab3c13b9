"""Left-to-right sampling with a key-value cache, for causal models."""

from __future__ import annotations

import torch

from partita.contracts.shapes import Tokens
from partita.errors import require
from partita.methods.contracts import CausalModel
from partita.samplers.base import SamplingContext, sampler
from partita.samplers.state import SamplerState


@sampler("autoregressive", family="causal", default=True)
def autoregressive(context: SamplingContext[CausalModel], state: SamplerState) -> Tokens:
    """Sample from left to right. Known tokens must be a prefix; its length may differ by row."""
    model, revealed = context.model, state.revealed
    length, device = state.tokens.shape[1], state.tokens.device
    prefix = not bool((revealed[:, 1:] & ~revealed[:, :-1]).any())
    problem = "an autoregressive model can only continue a prefix"
    remedy = "use a masked model to fill blanks"
    require(prefix, "prompt", f"{problem}, but a known token follows a blank", remedy)
    common = int(revealed.sum(-1).min())
    read = model.shifted(state.tokens)[:, : common + 1]
    caches = model.new_caches(state.batch)
    rows = torch.arange(state.batch, device=device)
    for position in range(common, length):
        with torch.no_grad():
            log_probs = model.following(read, caches, context.label)
        positions = torch.full_like(rows, position)
        tokens = context.draw(log_probs, 0, rows, positions)
        new = ~revealed[:, position]
        state.write(rows[new], positions[new], tokens[new])
        context.report(position - common, length - common, state, rows[new], positions[new])
        read = state.tokens[:, position : position + 1]
    return state.tokens
