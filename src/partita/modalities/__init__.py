"""Modalities: text, images, and others that are registered.

Each is one object that ties together its kind of data, its models, and what the command line does
with them. A new one is a file and one line: `MODALITIES.register("numbers")(Numbers())`, which
registers its kind of data and its class of models too.
"""

from partita.modalities.base import MODALITIES, Modality, modality_of
from partita.modalities.images import ImageModality
from partita.modalities.text import TextModality

MODALITIES.register("text")(TextModality())
MODALITIES.register("images")(ImageModality())

__all__ = ["MODALITIES", "Modality", "modality_of"]
