"""Small saved models, and ways to change their files."""

from __future__ import annotations

import json

import torch

from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.data.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer
from partita.files import format
from partita.files.atomic import sha256
from partita.models.text_model import TextModel
from partita.networks.options import TransformerOptions

TEXT = "pack my box with five dozen liquor jugs " * 20
TOKENIZERS = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTokenizer("aäß ☃"),
    "bpe": BPETokenizer.train(TEXT, 300),
}


def tiny(method="mdlm", tokenizer="characters", **sections):
    network = TransformerOptions(length=8, width=8, depth=1, heads=2)
    recipe = Recipe(method=MethodOptions(method), network=network, **sections)
    vocabulary = TOKENIZERS[tokenizer]
    built = recipe.method.build(network, vocabulary.vocab_size)
    torch.manual_seed(0)
    for parameter in built.parameters():  # a new network makes the same prediction for any input
        torch.nn.init.normal_(parameter)
    return TextModel(built, vocabulary, recipe, {"data": "notes.txt", "step": 7})


def seal(folder):
    """Correct the checksums, as an attacker would."""
    path = folder / format.MANIFEST
    manifest = json.loads(path.read_text())
    manifest["checksums"] = {name: sha256(folder / name) for name in manifest["checksums"]}
    path.write_text(json.dumps(manifest))


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
