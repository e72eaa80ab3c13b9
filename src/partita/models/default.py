"""The model that an installation comes with: a folder of the format inside the package."""

from __future__ import annotations

from pathlib import Path

from partita.errors import require
from partita.models import checkpoints

WEIGHTS = Path(__file__).parent.parent / "weights"
NAME = "default"  # stands for it wherever a model is named


def ships_a_model() -> bool:
    """Whether this installation comes with a model."""
    return checkpoints.is_model(WEIGHTS)


def default_model() -> Path:
    """The folder of the model that this installation comes with."""
    problem = "this installation comes without a model"
    remedy = "name one: a run folder, an exported model or a hub id"
    require(ships_a_model(), "model", problem, remedy)
    return WEIGHTS
