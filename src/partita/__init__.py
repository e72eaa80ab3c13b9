"""Partita: masked and partition generative models, which learn to fill in hidden tokens."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from partita.moved import know_old_names, name_of_before
from partita.version import __version__

__all__ = [
    "AR",
    "D3PM",
    "DDPM",
    "MD4",
    "MDLM",
    "PGM",
    "SEDD",
    "BPETokenizer",
    "Batch",
    "ByteTokenizer",
    "Callback",
    "CausalTransformer",
    "CharacterTokenizer",
    "ComplementaryMDLM",
    "DataOptions",
    "DistillationOptions",
    "EmbeddingDDPM",
    "Estimate",
    "FlexMDM",
    "FlexibleTransformer",
    "GenMD4",
    "ImageModel",
    "InputError",
    "MaskGIT",
    "MethodOptions",
    "Network",
    "Noise",
    "PartitionNetwork",
    "PartitionTransformer",
    "PatchTransformer",
    "PixelUNet",
    "Progress",
    "Prompt",
    "Recipe",
    "RunOptions",
    "SamplingOptions",
    "Score",
    "TextModel",
    "TokenizerOptions",
    "TrainedModel",
    "TrainingOptions",
    "Transformer",
    "TransformerConfig",
    "TransformerOptions",
    "UNet",
    "UniformSEDD",
    "VectorNetwork",
    "VectorTransformer",
    "__version__",
    "bits_per_dimension",
    "exact_log_likelihood",
    "fit",
    "guided",
    "load",
    "make_schedule",
    "nelbo",
    "order_likelihood",
    "sample",
    "sample_ddpm",
    "train",
]

# For type checkers and editors; at run time each of these modules loads on first use.
if TYPE_CHECKING:
    from partita.config.data import DataOptions, TokenizerOptions
    from partita.config.method import MethodOptions
    from partita.config.recipe import Recipe
    from partita.config.sampling import SamplingOptions
    from partita.config.training import RunOptions, TrainingOptions
    from partita.contracts.batch import Batch
    from partita.contracts.estimate import Estimate
    from partita.contracts.prompt import Prompt
    from partita.data.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer
    from partita.distillation.options import DistillationOptions
    from partita.errors import InputError
    from partita.execution.choice import sample
    from partita.likelihood.bounds import nelbo
    from partita.likelihood.enumeration import exact_log_likelihood
    from partita.likelihood.orders import order_likelihood
    from partita.methods import (
        AR,
        D3PM,
        DDPM,
        MD4,
        MDLM,
        PGM,
        SEDD,
        ComplementaryMDLM,
        EmbeddingDDPM,
        FlexMDM,
        GenMD4,
        MaskGIT,
        UniformSEDD,
    )
    from partita.methods.ddpm import bits_per_dimension
    from partita.models.image_model import ImageModel
    from partita.models.score import Score
    from partita.models.text_model import TextModel
    from partita.models.trained import TrainedModel, load
    from partita.networks import (
        CausalTransformer,
        Network,
        PartitionNetwork,
        PartitionTransformer,
        PatchTransformer,
        PixelUNet,
        Transformer,
        TransformerConfig,
        TransformerOptions,
    )
    from partita.networks.flexible import FlexibleTransformer
    from partita.networks.old_names import DecoderOptions  # noqa: F401 - for one more version
    from partita.networks.unet import UNet
    from partita.networks.vectors import VectorNetwork, VectorTransformer
    from partita.randomness import Noise
    from partita.samplers import guided
    from partita.samplers.gaussian import sample_ddpm
    from partita.schedules import make_schedule
    from partita.training.callbacks import Callback, Progress
    from partita.training.loop import fit
    from partita.training.runner import train


def _homes() -> dict[str, str]:
    """The module of each public name, by the imports above: they are written once."""
    lines = ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names}


know_old_names()
_HOME = _homes()

if not TYPE_CHECKING:  # type checkers would accept any attribute

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            return name_of_before(__name__, name)
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
