"""MD4: Simplified and Generalized Masked Diffusion for Discrete Data (Shi et al., 2024).

The forward process is that of `masked.py`. MD4 adds the mean parameterization: the network's
softmax mu_theta(x_t, t) predicts E[x_0 | x_t] over real tokens only, so the mask (whose id is the
vocabulary size) cannot be predicted. The objective (eq. 5),

    L = integral_0^1 alpha'_t / (1 - alpha_t) E_q [sum over masked n of x_0^n . log mu^n] dt,

is MDLM's. MD4 conditions the network on the time, and studies linear, polynomial and cosine
schedules.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from partita.methods.base import METHODS, About
from partita.methods.masked_method import CHOICES, MaskedMethod
from partita.methods.mdlm import subs


@METHODS.register("md4")
class MD4(MaskedMethod):
    """Masked diffusion with the mean parameterization."""

    about = About(
        paper="Simplified and Generalized Masked Diffusion for Discrete Data (Shi et al., 2024)",
        equation="eq. 5",
        loss="cross-entropy of hidden tokens times -alpha' / (1 - alpha), a bound",
        choices=CHOICES,
    )
    default_schedule = "cosine"
    default_corruption = "continuous"
    default_conditioning = "time"
    predicts_real_tokens_alone = True
    plain_softmax = True
    recordable = True

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # in case the network has a logit for the mask
