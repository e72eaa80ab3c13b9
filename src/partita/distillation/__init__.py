"""A trained model in, a faster one out."""

from partita.distillation.divergences import DIVERGENCES
from partita.distillation.options import DistillationOptions
from partita.distillation.sdtt import SDTT

__all__ = ["DIVERGENCES", "SDTT", "DistillationOptions"]
