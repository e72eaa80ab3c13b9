"""Partita: masked and partition generative modelling."""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# What `import partita` offers, and where it lives. Modules load on first use.
_HOME = {
    "AR": "partita.methods",
    "D3PM": "partita.methods",
    "DDPM": "partita.methods",
    "bits_per_dimension": "partita.methods.ddpm",
    "EmbeddingDDPM": "partita.methods",
    "FlexMDM": "partita.methods",
    "GenMD4": "partita.methods",
    "SEDD": "partita.methods",
    "UniformSEDD": "partita.methods",
    "MD4": "partita.methods",
    "MDLM": "partita.methods",
    "PGM": "partita.methods",
    "ComplementaryMDLM": "partita.methods",
    "CausalTransformer": "partita.networks",
    "PartitionTransformer": "partita.networks",
    "Transformer": "partita.networks",
    "DecoderOptions": "partita.networks",
    "TransformerConfig": "partita.networks",
    "TransformerOptions": "partita.networks",
    "UNet": "partita.networks.unet",
    "BPETokenizer": "partita.data.tokenizers",
    "ByteTokenizer": "partita.data.tokenizers",
    "nelbo": "partita.evaluation.likelihood",
    "exact_log_likelihood": "partita.evaluation.enumeration",
    "order_likelihood": "partita.evaluation.orders",
    "guided": "partita.samplers",
    "Prompt": "partita.samplers",
    "sample": "partita.samplers",
    "generate": "partita.samplers.gaussian",
    "Noise": "partita.randomness",
    "run_recipe": "partita.training.runner",
    "TrainingOptions": "partita.training.options",
    "fit": "partita.training.loop",
    "TextModel": "partita.hub.text_model",
    "ImageModel": "partita.hub.image_model",
    "load": "partita.hub.trained",
    "Recipe": "partita.recipe",
    "InputError": "partita.errors",
    "make_schedule": "partita.schedules",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'partita' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
