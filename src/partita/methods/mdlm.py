"""MDLM: Simple and Effective Masked Diffusion Language Models (Sahoo et al., 2024).

The forward process is that of `masked.py`. MDLM adds the SUBS parameterization (section 3.2.3):

1. zero masking probabilities: the network has a logit for the mask, and SUBS sets it to -inf;
2. carry-over unmasking: a visible token is copied. The reverse step does that by construction,
   and predictions are only queried at hidden positions.

With it the bound is a weighted average of masked language modeling losses, eq. 10:

    L = E_q integral_0^1 alpha'_t / (1 - alpha_t) sum_l log <x_theta^l(z_t), x^l> dt

The network is not conditioned on the time, so eq. 10 can be estimated in its `subset` form, the
default here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from partita.methods.base import METHODS, About
from partita.methods.masked_method import CHOICES, MaskedMethod


def subs(logits: Float[Tensor, "*n C"], mask_id: int) -> Float[Tensor, "*n C"]:
    """log x_theta at hidden positions: no mass on the mask, normalized in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    column = torch.arange(logits.shape[-1], device=logits.device)
    return logits.masked_fill(column == mask_id, -torch.inf).log_softmax(-1)


@METHODS.register("mdlm")
class MDLM(MaskedMethod):
    """Masked diffusion with the SUBS parameterization. The mask may be any of the input ids."""

    about = About(
        paper="Simple and Effective Masked Diffusion Language Models (Sahoo et al., 2024)",
        equation="eq. 10",
        loss="cross-entropy of hidden tokens, weighted to a bound in continuous time",
        choices=CHOICES,
    )
    default_schedule = "log-linear"
    default_corruption = "subset"
    default_conditioning = "none"
    plain_softmax = True
    recordable = True

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)
