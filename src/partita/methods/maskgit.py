"""MaskGIT: Masked Generative Image Transformer (Chang et al., 2022).

An image is a grid of tokens, read row by row. Training draws r uniformly, hides each token with
probability gamma(r), and minimises (eq. 1)

    L = -E [ sum over hidden i of log p(y_i | what is visible) ]

without weights: no bound on a likelihood, but every hidden token counts alike. The network is not
told r. With `schedule="arccos"`, the default, gamma(r) = arccos(r) / (pi/2), the choice of the
open reproductions; "cosine" is the paper's own, gamma(r) = cos(pi r/2). (Our time t is 1 - r.)

The paper's sampler is `confidence` (section 3.2: counts by gamma, Gumbel noise that cools
linearly); `halton` needs no confidence; without a choice it is `ancestral`, as for all of the
family. Guidance pulls samples towards a label.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from partita.methods.base import METHODS, About
from partita.methods.masked_method import MaskedMethod
from partita.methods.mdlm import subs


@METHODS.register("maskgit")
class MaskGIT(MaskedMethod):
    """Masked modelling of image tokens: plain cross-entropy of what is hidden."""

    about = About(
        paper="MaskGIT: Masked Generative Image Transformer (Chang et al., 2022)",
        equation="eq. 1",
        loss="cross-entropy of hidden tokens without weights, no bound",
        choices={
            "schedule": "alpha(t), one minus the hiding rate: arccos, cosine; see all schedules",
            "corruption": "how tokens are hidden and weighed; see the list of corruptions",
            "conditioning": "what the network is told: none, time or sigma",
        },
    )
    default_schedule = "arccos"
    default_corruption = "unweighted"
    default_conditioning = "none"
    predicts_real_tokens_alone = True
    plain_softmax = True
    recordable = True

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # for networks that have a logit for the mask after all
