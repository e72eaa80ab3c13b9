"""MaskGIT: Masked Generative Image Transformer (Chang et al., 2022).

An image is a grid of tokens, read row by row. Training draws r uniformly, hides each token with
probability gamma(r), and minimizes (eq. 1)

    L = -E [ sum over hidden i of log p(y_i | what is visible) ]

without weights: every hidden token counts alike, and the loss is no bound on a likelihood. The
network is not conditioned on r. With `schedule="arccos"`, the default, gamma(r) = arccos(r) /
(pi/2), as in the open reproductions; "cosine" is the paper's, gamma(r) = cos(pi r/2). (Our time t
is 1 - r.)

The paper's sampler is `confidence` (section 3.2: counts by gamma, Gumbel noise annealed linearly);
`halton` needs no confidences; the default is `ancestral`, as for the whole family. Guidance moves
samples towards a label.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from partita.methods.base import METHODS, About
from partita.methods.masked_method import CHOICES, MaskedMethod
from partita.methods.mdlm import subs


@METHODS.register("maskgit")
class MaskGIT(MaskedMethod):
    """Masked modeling of image tokens, with the unweighted cross-entropy of hidden tokens."""

    about = About(
        paper="MaskGIT: Masked Generative Image Transformer (Chang et al., 2022)",
        equation="eq. 1",
        loss="cross-entropy of hidden tokens without weights, no bound",
        choices=CHOICES
        | {"schedule": "alpha(t), one minus the hiding rate: arccos, cosine; see all schedules"},
    )
    default_schedule = "arccos"
    default_corruption = "unweighted"
    default_conditioning = "none"
    predicts_real_tokens_alone = True
    plain_softmax = True
    recordable = True

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # in case the network has a logit for the mask
