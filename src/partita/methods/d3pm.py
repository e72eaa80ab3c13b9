"""D3PM: Structured Denoising Diffusion Models in Discrete State-Spaces (Austin et al., 2021).

Each token moves independently through T steps of a Markov chain; a network reads all noisy tokens
and predicts the clean ones. Distributions over states are row vectors.

    one step      q(z_t | z_(t-1))    = z_(t-1) Q_t                                        (eq. 2)
    one shot      q(z_t | x)          = x Q_1 ... Q_t                                      (eq. 3)
    posterior     q(z_s | z_t, x)     = q(z_t | z_s) q(z_s | x) / q(z_t | x)               (eq. 3)
    reverse       p(z_s | z_t)       ~  sum_x q(z_s, z_t | x) p~(x | z_t)                  (eq. 4)
    bound         L_vb = KL(q(z_T | x) || p(z_T)) + sum_(t>1) E KL(q(z_(t-1) | z_t, x) ||
                         p(z_(t-1) | z_t)) - E log p(x | z_1)                              (eq. 1)
    loss          L_vb + lambda sum_t -E log p~(x | z_t)                                   (eq. 5)

The chains are in `processes/transitions.py`, the amounts of noise in `processes/betas.py`.
Equation 4 holds for any steps s < t with Q_(s+1) ... Q_t in place of Q_t; this allows sampling in
fewer than T steps. It multiplies the prediction by q(z_t | x), so the network learns the
distribution of a token given the *other* tokens of z_t. The authors' code takes p~ itself for the
last step, p(x | z_1); `last_step="prediction"` does that. The cross-entropy of eq. 5 fits a
different distribution, that given *all* of z_t. The two are the same for masks, which carry no
information on what they hide; for other chains they conflict, and lambda is 0 by default.

With an absorbing chain, equation 4 copies visible tokens, and the bound is MDLM's of T steps.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout
from partita.contracts.loss import Loss
from partita.contracts.packed import indices_of
from partita.contracts.shapes import Labels, LogProbs, RowSteps, RowTimes, Tokens
from partita.errors import require, require_known, require_number
from partita.methods.base import METHODS, About, NetworkMethod, check_batch
from partita.methods.contracts import Chain
from partita.methods.masked_method import TIME_SCALE
from partita.methods.mdlm import subs
from partita.networks.base import Network, check_bidirectional, check_timed
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.draws import Noised, even_steps
from partita.processes.matrices import make_transition
from partita.processes.transitions import TINY, Transition
from partita.randomness import Noise, Purpose
from partita.schedules import Schedule

LAST_STEPS = ("posterior", "prediction")

# The process -------------------------------------------------------------------------------------


def posterior(
    transition: Transition, x: Tokens, z_t: Tokens, s: RowSteps, t: RowSteps
) -> Float[Tensor, "B L K"]:
    """q(z_s | z_t, x) for steps s < t (eq. 3); z_t must have positive probability given x."""
    start = torch.zeros_like(s)
    joint = transition.columns(z_t, s, t) * transition.rows(x, start, s)
    return joint / transition.entries(x, z_t, start, t)[..., None]


def reverse(
    transition: Transition, mean: LogProbs, z_t: Tokens, s: RowSteps, t: RowSteps
) -> Float[Tensor, "B L K"]:
    """p(z_s | z_t) with p~ = mean (eq. 4).

    A state z_t with probability 0 under the mean stays unchanged. (A visible token of an absorbing
    chain never changes, but its mean may underflow to 0.)
    """
    joint = transition.columns(z_t, s, t).mul_(transition.push(mean, s))
    total = joint.sum(-1, keepdim=True)
    joint /= total.clamp(min=TINY)
    return joint.scatter_add_(-1, z_t[..., None], (total <= 0).to(joint.dtype)).to(mean.dtype)


# The method --------------------------------------------------------------------------------------


@METHODS.register("d3pm")
class D3PM(NetworkMethod, Chain):
    """A network that predicts clean tokens, and the Markov chain that it reverses.

    For every transition the network's last input id is the mask, which also stands for padding.
    """

    about = About(
        paper="Structured Denoising Diffusion Models in Discrete State-Spaces"
        " (Austin et al., 2021)",
        equation="eq. 5",
        loss="L_vb, a bound over T steps, + lambda times the cross-entropy",
        choices={
            "options.transition": "absorbing (the default), uniform or gaussian",
            "options.steps": "T, 1000 unless given",
            "options.betas": "linear, cosine, cosine-squared or mutual-information (jsd); the"
            " default is mutual-information for absorbing, cosine for uniform, linear for gaussian",
            "options.betas_options": "start and end of linear; offset and cap of the cosines",
            "options.hybrid": "lambda: 0.01 for absorbing, else 0",
            "options.last_step": "posterior (the default) or prediction",
        },
    )
    network: Network
    mask_id: int

    def __init__(
        self,
        network: Network,
        *,
        transition: str | Transition | Tensor = "absorbing",
        betas: str | Schedule | Tensor | None = None,
        steps: int | None = None,
        hybrid: float | None = None,
        last_step: str = "posterior",
        betas_options: dict[str, float] | None = None,
    ) -> None:
        """`transition` and `betas` are names or objects; the betas default to the paper's.

        `hybrid` is lambda of eq. 5, by default 0.01 for an absorbing chain and 0 for others. Custom
        matrices [T, K, K] are over the real tokens, with or without the mask.
        """
        super().__init__()
        _check_network(network)
        self.network = network
        self.mask_id = network.config.vocab_size - 1
        options = betas_options or {}
        self.transition = make_transition(transition, self.mask_id, betas, steps, **options)
        real, size = self.transition.tokens, self.transition.size
        problem = f"is over {size} states, but there are {self.mask_id} tokens and a mask"
        require(real == self.mask_id and size <= real + 1, "transition", problem)
        hybrid = self.transition.default_hybrid if hybrid is None else hybrid
        require_number(hybrid, "hybrid")
        require_known(last_step, "last_step", LAST_STEPS)
        self.hybrid, self.last_step = hybrid, last_step

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        transition: str = "absorbing",
        betas: str | None = None,
        betas_options: dict[str, float] | None = None,
        steps: int | None = None,
        hybrid: float | None = None,
        last_step: str = "posterior",
    ) -> D3PM:
        """Build the method with a new network for ids 0..tokens-1; the mask id is `tokens`."""
        sizes = {"vocab_size": tokens + 1, "output_size": tokens, "time": True}
        return cls(
            new_network(network, cls.reads, **sizes),
            transition=transition,
            betas=betas,
            steps=steps,
            hybrid=hybrid,
            last_step=last_step,
            betas_options=betas_options,
        )

    @property
    def steps(self) -> int:
        """T."""
        return self.transition.steps

    def _predict(
        self, z: Tensor, t: Tensor, label: Tensor | None, layout: Layout = DENSE
    ) -> LogProbs:
        """log p~(x | z_t) without the mask; the network is conditioned on t / T."""
        queries = indices_of(None, z)
        scalar = (TIME_SCALE * t.double() / self.steps).float()
        logits = self.logits(z, layout, queries=queries, scalar=scalar, label=label)
        return subs(logits, self.mask_id)[:, : self.mask_id].view(*z.shape, -1)

    # The loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """Draw a step t for each row, evenly over 1..T, and z_t from q(z_t | x); eq. 5 at t."""
        batch = check_batch(batch, self).padded_with(0)
        t = even_steps(noise, step, batch.size, self.steps)
        u = noise.uniforms(Purpose.MASK, step, batch.tokens.shape[1])
        return self.loss_given(batch, Noised(self.transition.draw(batch.tokens, t, u), t))

    def loss_given(self, batch: Batch, drawn: Noised) -> Loss:
        """The loss at given states: T times the term of step t.

        `per_token` is the bound, `cross_entropy` that of the clean token; the objective is the
        first plus lambda times the second.
        """
        x, real, (z_t, t) = batch.tokens, batch.real, drawn
        padded = torch.where(real, z_t, self.mask_id)
        log_mean = self._predict(padded, t, batch.label, batch.layout())
        clean = -log_mean.gather(-1, x[..., None])[..., 0]
        nats = self.transition.divergence(log_mean, x, z_t, t - 1, t)
        if self.last_step == "prediction":
            nats = torch.where(t[:, None] == 1, clean, nats)
        nats = self.steps * nats + self.transition.prior_nats(x).to(nats.dtype)
        per_token, cross_entropy = torch.where(real, nats, 0), torch.where(real, clean, 0)
        count = real.sum()
        total = per_token.sum() + self.hybrid * self.steps * cross_entropy.sum()
        return Loss(total / count, per_token, cross_entropy, real, count)

    # Sampling -------------------------------------------------------------------------------------

    def prior(self, like: Tokens) -> Float[Tensor, "B L K"]:
        """p(z_T)."""
        return self.transition.prior().to(like.device).expand(*like.shape, -1)

    def log_mean(self, tokens: Tokens, time: RowTimes, label: Labels | None = None) -> LogProbs:
        """log p~(x | z_t) at the step nearest to the given time."""
        return self._predict(tokens, self._step(time), label)

    def step(
        self, log_mean: LogProbs, tokens: Tokens, s: RowTimes, t: RowTimes
    ) -> Float[Tensor, "B L K"]:
        """p(z_s | z_t) for the steps nearest to s and t; if they are the same, nothing changes."""
        before, after = self._step(t), self._step(s)
        mean = log_mean.exp()
        moved = reverse(self.transition, mean, tokens, after, before)
        if self.last_step == "posterior":
            return moved
        last = ((before == 1) & (after == 0))[:, None, None]
        return torch.where(last, F.pad(mean, (0, moved.shape[-1] - mean.shape[-1])), moved)

    def _step(self, time: Tensor) -> Int64[Tensor, "B"]:
        return torch.round(time.double() * self.steps).long()


def _check_network(network: Network) -> None:
    """Refuse a network that is causal, or not conditioned on the time."""
    check_bidirectional(network)
    check_timed(network)
    real, outputs = network.config.vocab_size - 1, network.config.outputs
    problem = f"has {outputs} logits for {real} tokens and a mask"
    require(outputs >= real, "network", problem)
