"""PGM: Partition Generative Modeling, masked modeling without masks (Deschenaux et al., 2025).

Each token of a sequence joins group 1 with probability p_t = 1 - alpha_t and group 0 otherwise.
The network predicts every token from the tokens of the other group (section 3):

    L_PGM = E_{x, t, g} [ sum_i w(g, t)_i CE(x_theta(x; g)_i, x_i) ],    w = w(t)      if g_i = 1
                                                                          w(1 - t)  if g_i = 0

g_i is the group of the predicted token, as in the authors' code; where w(t) is printed beside
g_i = 0, g is the group that predicts. Predicting group 1 from group 0 is MDLM's task with group 1
masked, and has MDLM's weight w(t) = -alpha'_t / (1 - alpha_t) (MDLM eq. 10). Predicting group 0 is
the complementary task, with tokens hidden with probability alpha_t. Its bound has the weight
w^c(t) = -alpha'_t / alpha_t, which this file uses in place of w(1 - t): the two are equal where
alpha(1 - t) = 1 - alpha(t), as under the linear default. Elsewhere w(1 - t) may fall below the
bound (cosine) or lie loosely above it (1 - t^2). Each group estimates MDLM's bound; training
minimizes their mean, L_PGM / 2 per token, and evaluation reports it (`groups=1`: group 1 alone).
`PartitionMethod.loss` draws groups and weights, `query_groups` gives the logits of x_theta(x; g),
`weighted_cross_entropy` the sum.

The network is not conditioned on t, as the groups are at different times. So t can be integrated
out, which is the default (`subset` in `processes/corruption.py`): the paper draws t and then each
token's group, the default draws the size of group 1 and then its tokens. The expectation is the
same, and the weights are bounded.

The paper's own choices are `corruption="continuous"` with the log-linear schedule, and for the
network `queries` of positions, mean or logsumexp. The authors' code alone has `queries=learned`,
`process=mlp`, and labels and registers for images. Neither has the corruptions `subset`, `discrete`
and `clipped`, other schedules, a decoder of its own width or heads, RMS norm or SwiGLU.

Sampling (section 3) needs the prediction at hidden positions given the revealed tokens, which are
one group: `MaskedMethod.predict` encodes them alone. The network has no mask token; `mask_id`, the
id after its last one, only fills hidden positions and padding. Algorithm 1 is the sampler `ordered`
in random order; the default is `ancestral`, the reverse process with a random number per step.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.loss import Loss
from partita.errors import require, require_int
from partita.methods.base import METHODS, About, check_batch
from partita.methods.inference import query_groups
from partita.methods.masked_method import MaskedMethod
from partita.methods.mdlm import subs
from partita.methods.weighing import weighted_cross_entropy
from partita.networks.base import PartitionNetwork
from partita.processes.corruption import Corruption, Partition
from partita.randomness import Noise


class PartitionMethod(MaskedMethod):
    """A masked method that learns from both groups of a partition at once."""

    def check_corruption(self, corruption: Corruption) -> None:
        """Require weights for both groups and no time: the two groups are at different times."""
        problem = "but the two groups of a partition are at different times"
        remedy = "leave it out: the network does not take the time"
        require(not self.timed, "conditioning", f"is {self.conditioning!r}, {problem}", remedy)
        problem = f"{type(corruption).__name__} has no weights for the second group of a partition"
        remedy = "give it `partition`, and say `parts = True`"
        require(corruption.parts, "corruption", problem, remedy)

    def loss(
        self,
        batch: Batch,
        noise: Noise,
        step: int = 0,
        *,
        corruption: Corruption | None = None,
        groups: int = 2,
    ) -> Loss:
        """L_PGM / 2 per token, for a partition that the corruption draws.

        With `groups=1` only group 1 is predicted: MDLM's estimate of the same bound. (Under
        "discrete" the two groups have different bounds: sums of T steps of alpha and of 1 - alpha.)
        """
        require_int(groups, "groups", 1, 2)
        if groups == 1:
            return super().loss(batch, noise, step, corruption=corruption)
        batch = check_batch(batch, self).padded_with(self.mask_id)
        corruption = corruption or self.corruption
        self.check_corruption(corruption)
        drawn = corruption.partition(batch.real, noise, step, batch.size)
        return self.loss_of_groups(batch, drawn)

    def loss_of_groups(self, batch: Batch, drawn: Partition) -> Loss:
        """1/(2N) sum_i w_i CE(x_theta(x; g)_i, x_i) of a given partition, for N real tokens.

        (`loss_given` is MDLM's loss of given hidden tokens: group 0 predicts group 1.)
        """
        logits, queries = query_groups(self, batch, drawn.groups)
        return weighted_cross_entropy(self, logits, queries, batch, drawn.weights / 2)


@METHODS.register("pgm")
class PGM(PartitionMethod):
    """Partition generative modeling: each group of tokens is predicted from the other group."""

    about = About(
        paper="Partition Generative Modeling: Masked Modeling without Masks"
        " (Deschenaux et al., 2025)",
        equation="section 3",
        loss="cross-entropy of each group of a partition given the other, a bound",
        choices={
            "schedule": "alpha(t); see the list of schedules",
            "corruption": "how groups are drawn and weighted: subset, continuous, discrete,"
            " clipped",
        },
    )
    network: PartitionNetwork  # type: ignore[assignment]
    default_schedule = "log-linear"
    default_corruption = "subset"
    default_conditioning = "none"
    partitions = True
    reads = "groups"
    plain_softmax = True
    all_positions = True
    reads_padding = False
    recordable = True

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # in case the network has a logit for a mask
