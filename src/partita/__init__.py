"""Partita: masked and partition generative modelling."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AR",
    "D3PM",
    "DDPM",
    "MD4",
    "MDLM",
    "PGM",
    "SEDD",
    "BPETokenizer",
    "ByteTokenizer",
    "CausalTransformer",
    "CharacterTokenizer",
    "ComplementaryMDLM",
    "DataOptions",
    "DecoderOptions",
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
    "generate",
    "guided",
    "load",
    "make_schedule",
    "nelbo",
    "order_likelihood",
    "run_recipe",
    "sample",
]

# For type checkers and editors. At run time modules load on first use, by the table below.
if TYPE_CHECKING:
    from partita.data.options import DataOptions, TokenizerOptions
    from partita.data.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer
    from partita.distillation.options import DistillationOptions
    from partita.errors import InputError
    from partita.evaluation.enumeration import exact_log_likelihood
    from partita.evaluation.likelihood import Estimate, nelbo
    from partita.evaluation.orders import order_likelihood
    from partita.hub.image_model import ImageModel
    from partita.hub.score import Score
    from partita.hub.text_model import TextModel
    from partita.hub.trained import TrainedModel, load
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
    from partita.methods.options import MethodOptions
    from partita.networks import (
        CausalTransformer,
        DecoderOptions,
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
    from partita.networks.unet import UNet
    from partita.networks.vectors import VectorNetwork, VectorTransformer
    from partita.randomness import Noise
    from partita.recipe import Recipe
    from partita.samplers import Prompt, guided, sample
    from partita.samplers.gaussian import generate
    from partita.samplers.options import SamplingOptions
    from partita.schedules import make_schedule
    from partita.training.loop import fit
    from partita.training.options import RunOptions, TrainingOptions
    from partita.training.runner import run_recipe

_MODULES = {
    "partita.data.options": "DataOptions TokenizerOptions",
    "partita.data.tokenizers": "BPETokenizer ByteTokenizer CharacterTokenizer",
    "partita.distillation.options": "DistillationOptions",
    "partita.errors": "InputError",
    "partita.evaluation.enumeration": "exact_log_likelihood",
    "partita.evaluation.likelihood": "Estimate nelbo",
    "partita.evaluation.orders": "order_likelihood",
    "partita.hub.image_model": "ImageModel",
    "partita.hub.score": "Score",
    "partita.hub.text_model": "TextModel",
    "partita.hub.trained": "TrainedModel load",
    "partita.methods": (
        "AR D3PM DDPM MD4 MDLM PGM SEDD ComplementaryMDLM EmbeddingDDPM FlexMDM GenMD4 "
        "MaskGIT UniformSEDD"
    ),
    "partita.methods.ddpm": "bits_per_dimension",
    "partita.methods.options": "MethodOptions",
    "partita.networks": (
        "CausalTransformer DecoderOptions Network PartitionNetwork PartitionTransformer "
        "PatchTransformer PixelUNet Transformer TransformerConfig TransformerOptions"
    ),
    "partita.networks.flexible": "FlexibleTransformer",
    "partita.networks.unet": "UNet",
    "partita.networks.vectors": "VectorNetwork VectorTransformer",
    "partita.randomness": "Noise",
    "partita.recipe": "Recipe",
    "partita.samplers": "Prompt guided sample",
    "partita.samplers.gaussian": "generate",
    "partita.samplers.options": "SamplingOptions",
    "partita.schedules": "make_schedule",
    "partita.training.loop": "fit",
    "partita.training.options": "RunOptions TrainingOptions",
    "partita.training.runner": "run_recipe",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # which would take every name for an object that exists

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'partita' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
