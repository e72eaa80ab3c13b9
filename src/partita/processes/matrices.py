"""Transition matrices of D3PM without a closed form: dense ones, multiplied step by step.

A product is computed when its step is first needed, and cached. Everything is in float64; entries
are not negative and nothing is subtracted, so products keep their precision.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from partita.contracts.shapes import LogProbs, RowSteps, Tokens
from partita.errors import require, require_int
from partita.processes import interpolating  # noqa: F401 - registers its transitions
from partita.processes.betas import make_betas
from partita.processes.transitions import TINY, TRANSITIONS, Transition
from partita.schedules import Schedule

STEPS = 1000  # the paper's T
MOST_STEPS = 20_000  # as their products are computed one by one
LARGEST_TABLE = 1 << 30  # numbers: 8 GiB in float64


class Dense(Transition):
    """Arbitrary matrices. Their products from step 1 on are cached, at most T K^2 numbers."""

    def __init__(self, tokens: int, size: int, steps: int) -> None:
        super().__init__(tokens, size, steps)
        few = "use absorbing or uniform, which have closed forms, or fewer steps"
        require(steps <= MOST_STEPS, "transition", f"{steps} dense matrices take too long", few)
        problem = f"{steps} dense matrices of {size} states take {steps * size**2 / 2**27:.0f} GiB"
        require(steps * size**2 <= LARGEST_TABLE, "transition", problem, few)
        self._products: list[Tensor] = []

    @abstractmethod
    def one(self, t: int) -> Float64[Tensor, "K K"]:
        """Q_t."""

    def _product(self, t: int) -> Float64[Tensor, "K K"]:
        """Q_1 ... Q_t, computed from the last cached product."""
        if not self._products:
            self._products.append(torch.eye(self.size, dtype=torch.float64, device="cpu"))
        while len(self._products) <= t:
            self._products.append(self._products[-1] @ self.one(len(self._products)))
        return self._products[t]

    def matrix(self, s: int, t: int) -> Float64[Tensor, "K K"]:
        if s == 0:
            return self._product(t)
        product = torch.eye(self.size, dtype=torch.float64, device="cpu")
        for step in range(s + 1, t + 1):
            product = self.one(step) if step == s + 1 else product @ self.one(step)
        return product

    def _matrices(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct matrices needed, and the index of each row's matrix."""
        pairs, which = torch.unique(torch.stack([s, t], -1), dim=0, return_inverse=True)
        matrices = torch.stack([self.matrix(*pair) for pair in pairs.tolist()])
        return matrices.to(t.device), which[:, None]

    def rows(self, x: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        matrices, which = self._matrices(s, t)
        return matrices[which, x]

    def columns(self, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L K"]:
        matrices, which = self._matrices(s, t)
        return matrices.mT[which, z]

    def entries(self, x: Tokens, z: Tokens, s: RowSteps, t: RowSteps) -> Float64[Tensor, "B L"]:
        matrices, which = self._matrices(s, t)
        return matrices[which, x, z]

    def push(self, mean: LogProbs, t: RowSteps) -> Float[Tensor, "B L K"]:
        matrices, which = self._matrices(torch.zeros_like(t), t)
        chosen = matrices if len(matrices) == 1 else matrices[which[:, 0]]
        return (mean.double() @ chosen[:, : mean.shape[-1]]).to(mean.dtype)

    def prior(self) -> Float64[Tensor, "K"]:
        return self._product(self.steps)[: self.tokens].mean(0)

    def prior_nats(self, x: Tokens) -> Float64[Tensor, "B L"]:
        last, prior = self._product(self.steps)[: self.tokens], self.prior()
        nats: Tensor = torch.special.xlogy(last, last / prior.clamp(min=TINY)).sum(-1)
        return nats.to(x.device)[x]


@TRANSITIONS.register("gaussian")
class Gaussian(Dense):
    """Tokens become tokens with nearby ids: a discretized Gaussian (appendix A.2.3)."""

    default_betas = "linear"

    def __init__(self, tokens: int, betas: Float[Tensor, "T"]) -> None:
        super().__init__(tokens, tokens, len(betas))
        require(tokens > 1, "transition", "a Gaussian needs two tokens at least")
        self._betas = betas.to("cpu", torch.float64)
        require(bool((self._betas > 0).all()), "betas", "of a Gaussian must be positive")

    def one(self, t: int) -> Float64[Tensor, "K K"]:
        """Q_t: symmetric with rows that sum to 1, so that the limit is uniform."""
        ids = torch.arange(self.size, dtype=torch.float64, device="cpu")
        width = (self.size - 1) ** 2 * self._betas[t - 1] / 4
        by_distance = torch.exp(-(ids**2) / width)
        by_distance = by_distance / (1 + 2 * by_distance[1:].sum())
        matrix = by_distance[(ids[:, None] - ids).abs().long()].fill_diagonal_(0)
        return matrix + torch.diag(1 - matrix.sum(-1))


class Own(Dense):
    """Custom matrices: one for every step, or one for all steps.

    They are over the real tokens, with or without the mask.
    """

    def __init__(
        self, matrices: Float[Tensor, "..."], steps: int | None = None, *, masks: bool = False
    ) -> None:
        """`masks` says that the last state is the mask; `steps` is needed for a single matrix."""
        square = matrices.ndim in (2, 3) and matrices.shape[-2] == matrices.shape[-1] > masks
        problem = f"matrices must be [T, K, K] or [K, K], got {list(matrices.shape)}"
        require(square, "transition", problem)
        alone = matrices.ndim == 2
        problem = "says how often a single matrix is used" if alone else "are as many as matrices"
        remedy = "give it" if alone else "leave it out"
        fits = steps is not None if alone else steps in (None, len(matrices))
        require(fits, "steps", problem, remedy)
        table = matrices.to("cpu", torch.float64).view(-1, *matrices.shape[-2:])
        sums = table.sum(-1, keepdim=True)
        fits = bool((table >= 0).all()) and bool(((sums - 1).abs() < 1e-5).all())
        require(fits, "transition", "every row of a matrix must be probabilities with the sum 1")
        size = matrices.shape[-1]
        super().__init__(size - masks, size, steps if steps is not None else len(matrices))
        self._table = table / sums

    def one(self, t: int) -> Float64[Tensor, "K K"]:
        return self._table[0 if len(self._table) == 1 else t - 1]


def make_transition(
    transition: str | Transition | Tensor,
    tokens: int,
    betas: str | Schedule | Tensor | None = None,
    steps: int | None = None,
    **options: Any,
) -> Transition:
    """A transition by name with its betas, or one of custom matrices."""
    if isinstance(transition, str):
        kind = TRANSITIONS[transition]
        chosen = betas if betas is not None else kind.default_betas
        return kind(tokens, make_betas(chosen, steps, STEPS, **options))  # type: ignore[call-arg, arg-type]
    require(betas is None and not options, "betas", "own matrices have none", "leave them out")
    if isinstance(transition, Transition):
        require(steps in (None, transition.steps), "steps", f"are {transition.steps} already")
        return transition
    wrong = f"must be a name, a Transition or a tensor, got {type(transition).__name__}"
    require(isinstance(transition, Tensor), "transition", wrong)
    if steps is not None:
        require_int(steps, "steps")
    return Own(transition, steps, masks=transition.shape[-1:] == (tokens + 1,))
