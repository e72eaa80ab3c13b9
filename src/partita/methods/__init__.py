"""Methods, one file per paper: forward process, loss and predictions."""

from partita.contracts.loss import Loss as Loss
from partita.methods.ar import AR as AR
from partita.methods.base import METHODS as METHODS
from partita.methods.complementary import ComplementaryMDLM as ComplementaryMDLM
from partita.methods.contracts import Denoiser as Denoiser
from partita.methods.d3pm import D3PM as D3PM
from partita.methods.ddpm import DDPM as DDPM
from partita.methods.diffusion_lm import EmbeddingDDPM as EmbeddingDDPM
from partita.methods.flexmdm import FlexMDM as FlexMDM
from partita.methods.genmd4 import GenMD4 as GenMD4
from partita.methods.maskgit import MaskGIT as MaskGIT
from partita.methods.md4 import MD4 as MD4
from partita.methods.mdlm import MDLM as MDLM
from partita.methods.pgm import PGM as PGM
from partita.methods.sedd import SEDD as SEDD
from partita.methods.sedd import UniformSEDD as UniformSEDD
