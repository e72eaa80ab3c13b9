"""Gaussian mixtures with their exact predictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributions import Normal

from partita.contracts.layouts import DENSE
from partita.methods.diffusion_lm import EmbeddingDDPM
from partita.networks.base import NetworkConfig
from partita.networks.vectors import VectorNetwork
from partita.processes.gaussian import gaussian
from partita.randomness import Purpose


@dataclass(frozen=True)
class Sizes(NetworkConfig):
    """The sizes of a network that is a formula."""

    length: int = 1
    vocab_size: int = 2
    outputs: int = 2
    classes: int = 0
    time: bool = True


class Formula(torch.nn.Module, VectorNetwork):
    """Logits that are an arbitrary function of vector and time."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.config, self.dimensions, self.strength = Sizes(), 1, strength

    def forward(self, x, *, scalar=None, label=None, layout=DENSE):  # noqa: ARG002
        lean = torch.sin(2 * x) + 0.5 + scalar[:, None, None] / 1000
        return self.strength * torch.cat([lean, -lean], dim=-1)


class MixedFormula(Formula):
    """Strengths for label 1 of 3 and for none; without labels, both mixed by a weight of 1 - t.

    The weights 0 and -1 are the two themselves.
    """

    def __init__(self, known, nothing, weight=None):
        super().__init__(known)
        self.config, self.strengths, self.weight = Sizes(classes=3), (known, nothing), weight

    def forward(self, x, *, scalar=None, label=None, **more):
        weight = self.weight(1 - scalar / 1000) if label is None else -(label != 1).float()
        mixed = (1 + weight) * self.strengths[0] - weight * self.strengths[1]
        self.strength = mixed[:, None, None]
        return super().forward(x, scalar=scalar, **more)


def two_tokens(formula, steps):
    """Two tokens, at -1 and 1 of a line, and sequences of one: everything can be integrated."""
    formula = Formula(formula) if isinstance(formula, float) else formula
    model = EmbeddingDDPM(formula, schedule="cosine", steps=steps)
    with torch.no_grad():
        model.embed.weight.copy_(torch.tensor([[-0.7], [2.0]]))
    return model


GRID = torch.linspace(-7, 7, 2801, dtype=torch.float64)


def token_law(model):
    """p(w) of the reverse chain, by densities on a grid."""
    total, density = model.process.steps, Normal(0.0, 1.0).log_prob(GRID).exp()
    for number in range(total, 0, -1):
        t = torch.full((len(GRID),), number)
        log_probs = model.log_probabilities(GRID.float()[:, None, None], t).detach()
        if number == 1:
            return density @ log_probs[:, 0].double().exp() * (GRID[1] - GRID[0])
        mean = model.process.posterior_mean(
            model.clean(log_probs).double().detach()[:, 0], GRID[:, None], t - 1, t
        )
        sigma = model.process.posterior_variance(t - 1, t).sqrt()[:, None]
        move = Normal(mean, sigma).log_prob(GRID).exp()
        density = density @ move * (GRID[1] - GRID[0])
    raise AssertionError("unreachable")


def all_terms(model, x_0, noise) -> torch.Tensor:
    """L_0, ..., L_{T-1} and L_T (DDPM eq. 5) of each row, with independent noise for each t."""
    terms = []
    for number in range(1, model.process.steps + 1):
        t = torch.full((len(x_0),), number)
        terms.append(model.term(x_0, t, gaussian(noise, Purpose.MASK, number, x_0)))
    return torch.stack([*terms, model.prior_term(x_0)], dim=1)
