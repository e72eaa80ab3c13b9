"""PGM: Partition Generative Modeling, masked modeling without masks (Deschenaux et al., 2025).

Each token of a sequence joins group 1 with probability p_t = 1 - alpha_t and group 0 otherwise.
The network predicts every token from the tokens of the other group (section 3):

    L_PGM = E [ sum_i w^PGM(g, t)_i CE(x_theta(x; g)_i, x_i) ],    w^PGM = w(t)   if g_i = 1
                                                                           w^c(t) if g_i = 0

Predicting group 1 from group 0 is MDLM's task with group 1 masked, and has MDLM's weight w(t) =
-alpha'_t / (1 - alpha_t). Predicting group 0 from group 1 is the complementary task, with tokens
hidden with probability alpha_t; its bound has the weight w^c(t) = -alpha'_t / alpha_t. The paper
writes w(1 - t), which is the same if alpha(1 - t) = 1 - alpha(t) and gives no bound otherwise. Half
of the sum is the mean of two valid bounds: training minimizes it, evaluation reports it by default.

The default corruption has the time integrated out (`corruption.py`, subset): the size k of group 1
is uniform between 0 and L (the ends have half the chance and twice the weight), and the weights are
L/k and L/(L-k), bounded where 1/t and 1/(1-t) are not.

Sampling encodes the revealed tokens and decodes the queried positions; there is no mask token.
The samplers are those of the masked family (algorithm 1 is `ordered` in random order).
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.contracts.loss import Loss
from partita.errors import require, require_int
from partita.methods.base import METHODS, About, check_batch
from partita.methods.masked_method import MaskedMethod
from partita.methods.mdlm import subs
from partita.methods.queries import ask_groups, predict_groups
from partita.networks.base import PartitionNetwork
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.corruption import Corrupted, Corruption, Partition
from partita.randomness import Noise


class PartitionMethod(MaskedMethod):
    """A masked method that learns from both groups of a partition at once."""

    def check_corruption(self, corruption: Corruption) -> None:
        """Require weights for both groups and no time: the two groups are at different times."""
        require(
            not self.timed,
            "conditioning",
            f"is {self.conditioning!r}, but the two groups of a partition are at different times",
            "leave it out: the network is not told the time",
        )
        problem = f"{type(corruption).__name__} has no weights for the second group of a partition"
        require(
            corruption.parts, "corruption", problem, "give it `partition`, and say `parts = True`"
        )

    def loss(
        self,
        batch: Batch,
        noise: Noise,
        step: int = 0,
        *,
        corruption: Corruption | None = None,
        groups: int = 2,
    ) -> Loss:
        """L_PGM / 2 for a partition drawn by the corruption; the arguments are those of MDLM.

        With `groups=1` only group 1 is predicted: MDLM's estimate of the same bound. (Under
        "discrete", group 0 gives the bound of a different chain, the complementary one.)
        """
        require_int(groups, "groups", 1, 2)
        if groups == 1:
            return super().loss(batch, noise, step, corruption=corruption)
        batch = check_batch(batch, self).padded_with(self.mask_id)
        corruption = corruption or self.corruption
        self.check_corruption(corruption)
        return self.loss_given(batch, corruption.partition(batch.real, noise, step, batch.size))

    def loss_given(self, batch: Batch, drawn: Corrupted | Partition) -> Loss:
        """1/2 sum_i w_i CE(x_theta(x; g)_i, x_i), for tokens that are already partitioned.

        Given hidden tokens instead of a partition, it is MDLM's loss: group 0 predicts group 1.
        """
        if isinstance(drawn, Corrupted):
            return super().loss_given(batch, drawn)
        prediction = predict_groups(self, batch, drawn.groups)
        return prediction.cross_entropy(batch, drawn.weights / 2)

    def predict_both(
        self, batch: Batch, groups: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "N V"], Queries]:
        """log x_theta(x; g) for every real token given the other group, and their positions."""
        logits, queries = ask_groups(self, batch, groups)
        return self.log_probabilities(logits), queries


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

    @classmethod
    def _new_network(cls, options: TransformerOptions, tokens: int, timed: bool) -> nn.Module:
        """A network with inputs and outputs for the real tokens only; it has no mask token."""
        network: nn.Module = new_network(options, cls.reads, vocab_size=tokens, time=timed)
        return network

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        return subs(logits, self.mask_id)  # in case the network has a logit for a mask
