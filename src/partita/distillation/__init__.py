"""Distillation: train a student that needs fewer sampling steps than its teacher."""

from partita.distillation.divergences import DIVERGENCES
from partita.distillation.options import DistillationOptions
from partita.distillation.sdtt import SDTT

__all__ = ["DIVERGENCES", "SDTT", "DistillationOptions"]
