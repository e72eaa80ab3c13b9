"""Methods, one file per paper: forward process, loss and predictions."""

from partita.contracts.loss import Loss
from partita.methods.ar import AR
from partita.methods.base import METHODS
from partita.methods.complementary import ComplementaryMDLM
from partita.methods.contracts import Denoiser
from partita.methods.d3pm import D3PM
from partita.methods.ddpm import DDPM
from partita.methods.diffusion_lm import EmbeddingDDPM
from partita.methods.flexmdm import FlexMDM
from partita.methods.genmd4 import GenMD4
from partita.methods.maskgit import MaskGIT
from partita.methods.md4 import MD4
from partita.methods.mdlm import MDLM
from partita.methods.pgm import PGM
from partita.methods.sedd import SEDD, UniformSEDD

__all__ = [
    "AR",
    "D3PM",
    "DDPM",
    "MD4",
    "MDLM",
    "METHODS",
    "PGM",
    "SEDD",
    "ComplementaryMDLM",
    "Denoiser",
    "EmbeddingDDPM",
    "FlexMDM",
    "GenMD4",
    "Loss",
    "MaskGIT",
    "UniformSEDD",
]
