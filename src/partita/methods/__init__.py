"""Methods, one file per paper: forward process, loss and predictions."""

from partita.methods.ar import AR
from partita.methods.base import METHODS, Denoiser, Loss
from partita.methods.md4 import MD4
from partita.methods.mdlm import MDLM
from partita.methods.pgm import PGM, ComplementaryMDLM

__all__ = ["AR", "MD4", "MDLM", "METHODS", "PGM", "ComplementaryMDLM", "Denoiser", "Loss"]
