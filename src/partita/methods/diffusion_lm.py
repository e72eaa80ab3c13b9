"""DDPM on token embeddings, the continuous baseline for text (after Diffusion-LM: Li et al., 2022).

Tokens w are embedded as vectors e(w) of D numbers, to which the process of `gaussian.py` adds
noise. The reverse chain of vectors ends in a rounding step, p(w | x_1), so the bound is one on the
tokens themselves and comparable with that of any other method:

    -log p(w) <= KL(q(x_T | e(w)) || N(0, I))
                 + sum_{t>1} KL(q(x_{t-1} | x_t, e(w)) || q(x_{t-1} | x_t, x_0^theta))
                 - E log p(w | x_1)

Steps are counted as in DDPM: Diffusion-LM's x_0, an embedding with a little noise, is x_1 here, and
its rounding term -log p(w | x_0) is the last line.

The network predicts tokens rather than vectors. Its logits are a prior, to which the evidence from
the position's own vector is added (as in Plaid: Gulrajani and Hashimoto, 2023):

    p(w_l | x_t) ~ exp(logits_l) N(x_{t,l}; sqrt(abar_t) e(w_l), (1 - abar_t) I)
    x_0^theta    = sum_w p(w_l | x_t) e(w)

So a network whose logits are all 0 is the exact denoiser of independent, uniform tokens, the
prediction is always a mean of embeddings, and p(w | x_1) needs no parameters of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout
from partita.contracts.loss import Loss
from partita.contracts.shapes import Labels, LogProbs, RowSteps
from partita.errors import require
from partita.methods.base import METHODS, About, NetworkMethod, check_batch
from partita.methods.contracts import EmbeddingModel
from partita.methods.masked_method import TIME_SCALE
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.networks.vectors import VectorNetwork
from partita.processes.draws import even_steps
from partita.processes.gaussian import GaussianProcess, Steps, gaussian, make_process
from partita.randomness import Noise, Purpose

DIMENSIONS = 16
SCHEDULE = "sqrt"
STEPS = 1000


class Diffused(NamedTuple):
    """The step t of each row, and the noise generator with the address to draw from."""

    t: RowSteps
    noise: Noise
    address: int


@METHODS.register("ddpm")
class EmbeddingDDPM(NetworkMethod, EmbeddingModel):
    """Gaussian diffusion of token embeddings; the network predicts tokens from noisy vectors."""

    about = About(
        paper="Denoising Diffusion Probabilistic Models (Ho et al., 2020), on embeddings",
        equation="eq. 5",
        loss="L over T steps of Gaussian noise, and a rounding to tokens: a bound",
        data="tokens; images and vectors from Python (partita.DDPM)",
        choices={
            "schedule": "of the noise: sqrt (the default), cosine or linear",
            "schedule_options": "offset of sqrt and cosine; first and last of linear",
            "options.steps": "T, 1000 unless given",
            "options.dimensions": "numbers of an embedding, 16 unless given",
            "options.learned": "whether embeddings move, true unless given",
        },
    )
    reads = "vectors"
    network: VectorNetwork
    process: GaussianProcess

    def __init__(
        self,
        network: VectorNetwork,
        *,
        schedule: str | GaussianProcess = SCHEDULE,
        steps: int = STEPS,
        learned: bool = True,
    ) -> None:
        """With `learned`, embeddings are trained by the bound; else they stay as initialized.

        Embeddings have length sqrt(D), so that a coordinate has about the variance of the noise;
        only their directions are learned.
        """
        super().__init__()
        problem = f"{type(network).__name__} does not read vectors"
        remedy = "use VectorTransformer"
        require(isinstance(network, VectorNetwork), "network", problem, remedy)
        self.network = network
        self.process = make_process(schedule, steps)
        self.embed = nn.Embedding(network.config.outputs, network.dimensions)
        self.embed.weight.requires_grad_(learned)

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule: str | None = None,
        schedule_options: dict[str, float] | None = None,
        steps: int = STEPS,
        dimensions: int = DIMENSIONS,
        learned: bool = True,
    ) -> EmbeddingDDPM:
        """Build the method with a new network for ids 0..tokens-1."""
        options = schedule_options or {}
        problem, takes = "steps are no option of the schedule", "give method.options.steps"
        require("steps" not in options, "schedule", problem, takes)
        process = make_process(schedule or SCHEDULE, steps, **options)
        sizes = {"vocab_size": tokens, "time": True, "dimensions": dimensions}
        reader = new_network(network, cls.reads, **sizes)
        return cls(reader, schedule=process, learned=learned)

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return self.embed.num_embeddings

    @property
    def mask_id(self) -> int:
        """The id of positions that are not generated yet: the id after the last token."""
        return self.tokens

    @property
    def vocab_size(self) -> int:
        return self.tokens + 1

    def vectors(self) -> Float[Tensor, "V D"]:
        """e(w) of every token, of length sqrt(D)."""
        weight = self.embed.weight
        vectors: Tensor = F.normalize(weight.float(), dim=-1) * weight.shape[1] ** 0.5
        return vectors

    def log_probabilities(
        self,
        x_t: Float[Tensor, "B L D"],
        t: Steps,
        label: Labels | None = None,
        *,
        layout: Layout = DENSE,
    ) -> LogProbs:
        """log p(w_l | x_t) at every position."""
        scalar = (TIME_SCALE / self.process.steps * t).float()
        logits = self.network(x_t, scalar=scalar, label=label, layout=layout).float()
        # |e(w)| is the same for all w, so the normal density reduces to a scalar product.
        scale = self.process.signal(t).sqrt() / self.process.variance(t)
        with torch.autocast(x_t.device.type, enabled=False):  # near t = 0 it is large and dominates
            evidence = scale.float()[:, None, None] * (x_t.float() @ self.vectors().T)
        log_probs: Tensor = (logits + evidence).log_softmax(-1)
        return log_probs

    def clean(self, log_probs: LogProbs) -> Float[Tensor, "B L D"]:
        """x_0^theta, the mean embedding."""
        with torch.autocast(log_probs.device.type, enabled=False):
            return log_probs.float().exp() @ self.vectors()

    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """The bound above, estimated from one t per row; used for training and evaluation.

        `noise.samples` numbers the rows in a global batch, over which t is spread evenly. Padding
        is a vector of 0 and never counts.
        """
        t = even_steps(noise, step, check_batch(batch, self).size, self.process.steps)
        return self.loss_given(batch, Diffused(t, noise, step))

    def loss_given(self, batch: Batch, drawn: Diffused) -> Loss:
        """The same for given steps t; its mean over t = 1..T is the bound."""
        t, real = drawn.t, batch.real
        tokens = batch.padded_with(0).tokens
        e = self.vectors()[tokens]
        epsilon = gaussian(drawn.noise, Purpose.MASK, drawn.address, e)
        x_t = self.process.marginal(e, t, epsilon)
        seen = torch.where(real[..., None], x_t, 0)
        log_probs = self.log_probabilities(seen, t, batch.label, layout=batch.layout())
        rounding = -log_probs.gather(-1, tokens[..., None])[..., 0]
        later = t.clamp(min=2)  # at t = 1 the rounding term replaces the divergence
        weight = self.process.divergence_weight(later - 1, later).float()[:, None]
        divergence = weight * ((e - self.clean(log_probs)) ** 2).sum(-1)
        term = torch.where((t == 1)[:, None], rounding, divergence)
        prior = self.process.prior_nats(e).sum(-1)
        per_token = torch.where(real, prior + self.process.steps * term, 0)
        count = real.sum()
        cross_entropy = torch.where(real, rounding, 0)
        return Loss(per_token.sum() / count, per_token, cross_entropy, real, count)
