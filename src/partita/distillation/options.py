"""The section `distillation` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from partita.distillation.divergences import DIVERGENCES
from partita.errors import require, require_int

MOST_ROUNDS = 64


@dataclass(frozen=True)
class DistillationOptions:
    """Distillation: learn from a teacher, the model that training starts from."""

    round: int = 0
    """The round of this run, from 1 (`partita distill` counts them); 0 for no distillation."""
    steps: int = 128
    """Sampling steps of the first round's teacher."""
    substeps: int = 2
    """Teacher steps that one step of the student replaces."""
    divergence: str = "reverse-kl"
    """forward-kl (teacher || student), reverse-kl (student || teacher), total-variation, mse (of
    probabilities), log-mse (of their logarithms)."""
    teacher: str | None = None
    """Checksum of the teacher's weights; a run fills it in."""

    def __post_init__(self) -> None:
        require_int(self.round, "distillation.round", 0, MOST_ROUNDS)
        require_int(self.steps, "distillation.steps")
        require_int(self.substeps, "distillation.substeps", 2)
        _ = DIVERGENCES[self.divergence]
        problem = f"after round {self.round} no step is left of {self.steps}"
        remedy = "give more steps, or fewer rounds"
        require(self.substeps**self.round <= self.steps, "distillation.steps", problem, remedy)

    @property
    def reach(self) -> float:
        """The length of one step of this round's student, in time from 1 to 0."""
        return float(self.substeps**self.round) / self.steps

    @property
    def step_size(self) -> float:
        """The length of one step of this round's teacher."""
        return self.reach / self.substeps

    @property
    def student_steps(self) -> int:
        """The number of sampling steps of this round's student, from time 1 to 0."""
        return self.steps // int(self.substeps**self.round)
