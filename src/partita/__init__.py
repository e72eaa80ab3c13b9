"""Partita: masked and partition generative models, which learn to fill in hidden tokens."""

from __future__ import annotations

import importlib
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

# For type checkers and editors. At run time modules load on first use, by the table below.
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
    from partita.networks.unet import UNet
    from partita.networks.vectors import VectorNetwork, VectorTransformer
    from partita.randomness import Noise
    from partita.samplers import guided
    from partita.samplers.gaussian import sample_ddpm
    from partita.schedules import make_schedule
    from partita.training.callbacks import Callback, Progress
    from partita.training.loop import fit
    from partita.training.runner import train

_MODULES = {
    "partita.config.data": "DataOptions TokenizerOptions",
    "partita.data.tokenizers": "BPETokenizer ByteTokenizer CharacterTokenizer",
    "partita.distillation.options": "DistillationOptions",
    "partita.errors": "InputError",
    "partita.likelihood.enumeration": "exact_log_likelihood",
    "partita.contracts.batch": "Batch",
    "partita.contracts.estimate": "Estimate",
    "partita.likelihood.bounds": "nelbo",
    "partita.likelihood.orders": "order_likelihood",
    "partita.models.image_model": "ImageModel",
    "partita.models.score": "Score",
    "partita.models.text_model": "TextModel",
    "partita.models.trained": "TrainedModel load",
    "partita.methods": (
        "AR D3PM DDPM MD4 MDLM PGM SEDD ComplementaryMDLM EmbeddingDDPM FlexMDM GenMD4 "
        "MaskGIT UniformSEDD"
    ),
    "partita.methods.ddpm": "bits_per_dimension",
    "partita.config.method": "MethodOptions",
    "partita.networks": (
        "CausalTransformer Network PartitionNetwork PartitionTransformer "
        "PatchTransformer PixelUNet Transformer TransformerConfig TransformerOptions"
    ),
    "partita.networks.flexible": "FlexibleTransformer",
    "partita.networks.unet": "UNet",
    "partita.networks.vectors": "VectorNetwork VectorTransformer",
    "partita.randomness": "Noise",
    "partita.config.recipe": "Recipe",
    "partita.contracts.prompt": "Prompt",
    "partita.samplers": "guided",
    "partita.execution.choice": "sample",
    "partita.samplers.gaussian": "sample_ddpm",
    "partita.config.sampling": "SamplingOptions",
    "partita.schedules": "make_schedule",
    "partita.training.loop": "fit",
    "partita.config.training": "RunOptions TrainingOptions",
    "partita.training.callbacks": "Callback Progress",
    "partita.training.runner": "train",
}
know_old_names()
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers would accept any attribute

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            return name_of_before(__name__, name)
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
