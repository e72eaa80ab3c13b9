"""Left-to-right sampling with a key-value cache, for causal models."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.errors import require
from partita.methods.contracts import CausalModel
from partita.samplers.base import Session, sampler
from partita.samplers.canvas import Canvas


@sampler("autoregressive", family="causal", default=True)
def autoregressive(session: Session[CausalModel], canvas: Canvas) -> Int64[Tensor, "B L"]:
    """One token after the other. The known tokens must be a prefix, which may differ by row."""
    model, revealed = session.model, canvas.revealed
    length, device = canvas.tokens.shape[1], canvas.tokens.device
    require(
        not bool((revealed[:, 1:] & ~revealed[:, :-1]).any()),
        "prompt",
        "an autoregressive model can only continue a prefix, but a known token follows a blank",
        "use a masked model to fill blanks",
    )
    common = int(revealed.sum(-1).min())
    read = model.shifted(canvas.tokens)[:, : common + 1]
    caches = model.new_caches(canvas.batch)
    rows = torch.arange(canvas.batch, device=device)
    for position in range(common, length):
        with torch.no_grad():
            log_probs = model.following(read, caches, session.label)
        positions = torch.full_like(rows, position)
        tokens = session.draw(log_probs, 0, rows, positions)
        new = ~revealed[:, position]
        canvas.write(rows[new], positions[new], tokens[new])
        session.report(position - common, length - common, canvas, rows[new], positions[new])
        read = canvas.tokens[:, position : position + 1]
    return canvas.tokens
