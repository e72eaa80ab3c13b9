"""Build a model from the files of a folder, which are not trusted.

The tokenizer's kind of data decides the class of the model.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mode
from typing import Any

import torch
from torch import Tensor, nn

from partita.config.migration import saved_recipe
from partita.config.recipe import Recipe
from partita.data.known_tokenizers import AnyTokenizer, any_tokenizer
from partita.devices import in_outline
from partita.errors import naming, require
from partita.files import format
from partita.methods import METHODS
from partita.methods.contracts import Model
from partita.models import image_model, text_model  # noqa: F401 - they register
from partita.models.card import terms_of
from partita.models.tensor_migration import migrated
from partita.models.trained import MODELS, TrainedModel
from partita.samplers.front import check_sampling

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FEW_BLOCKS = 64
_LONGEST = 1 << 24  # tokens; the one size that the weights do not confirm


def assembled(folder: Path, device: torch.device) -> TrainedModel:
    """The model of a folder. Every file is checked first."""
    checksums = format.verify(folder)
    place = folder / format.CONFIG
    content = format.read_json(place)
    provenance = content.get("provenance", {})
    require(isinstance(provenance, dict), "model", f"{place} is damaged: provenance has no keys")
    tokenizer = _tokenizer(folder, format.TOKENIZER_TENSORS in checksums)
    recipe = read_recipe(content, place)
    stored = _copied(folder / format.WEIGHTS)
    method = build(recipe, tokenizer, migrated(stored, recipe, format.version_of(folder)), folder)
    _check_sampling(method, recipe, place)
    make = model_class(tokenizer)
    return make(method.to(device), tokenizer, recipe, provenance, terms_of(folder))


def model_class(tokenizer: AnyTokenizer) -> type[TrainedModel]:
    """The class of models for the data of a tokenizer."""
    return MODELS[tokenizer.data]


def _copied(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, which may change, or be written anew, while the model is in use."""
    return {name: tensor.clone() for name, tensor in format.read_tensors(path).items()}


def _check_sampling(method: nn.Module, recipe: Recipe, place: Path) -> None:
    """Refuse sampling settings that do not fit the method, when the model is loaded."""
    options = recipe.sampling.options
    names = {name: f"sampling.options.{name}" for name in options}
    if isinstance(method, Model):
        with format.blaming(place), naming({**names, "sampler": "sampling.sampler"}):
            check_sampling(method, recipe.sampling.sampler, options)


def _tokenizer(folder: Path, has_tensors: bool) -> AnyTokenizer:
    path = folder / format.TOKENIZER_TENSORS
    with format.blaming(folder / format.TOKENIZER):
        tensors = _copied(path) if has_tensors else {}
        format.check_finite(path, tensors)
        return any_tokenizer(format.read_json(folder / format.TOKENIZER), tensors)


def read_recipe(content: Mapping[str, Any], place: Path) -> Recipe:
    """The recipe in the content of a `config.json` at `place`; of any version so far."""
    sections = saved_recipe(content, place)
    with format.blaming(place):
        _check_method(sections)
        recipe = Recipe.from_dict(sections)
        length = recipe.network.length
        require(length <= _LONGEST, "recipe", f"network.length is {length}, which is too long")
    return recipe


def build(
    recipe: Recipe, tokenizer: AnyTokenizer, weights: dict[str, Tensor], where: Path
) -> nn.Module:
    """The recipe's method with weights whose names and shapes must match exactly."""
    path = where / format.WEIGHTS
    # A depth that the file cannot hold is refused before so many blocks are made. (A method need
    # not have blocks, so that few of them are made in any case.)
    blocks = recipe.network.depth if weights else math.inf
    require(blocks <= max(len(weights), _FEW_BLOCKS), "model", f"{path} holds too few tensors")
    with format.blaming(where / format.CONFIG), in_outline():
        method = recipe.method.build(recipe.network, tokenizer.vocab_size)
    dtype = mode(tensor.dtype for tensor in weights.values())
    require(dtype in _DTYPES, "model", f"{path} holds tensors of {dtype}, which are no weights")
    expected = {name: (tensor.shape, dtype) for name, tensor in method.state_dict().items()}
    format.check_tensors(path, weights, expected)
    # Buffers may be infinite, such as a mask of attention.
    learned = [name for name, _ in method.named_parameters()]
    format.check_finite(path, {name: weights[name] for name in learned if name in weights})
    # Half precision is a way to store weights: what is computed with them is float32.
    wide = dtype if dtype.itemsize > 2 else torch.float32
    method.load_state_dict({name: x.to(wide) for name, x in weights.items()}, assign=True)
    return method.eval()


def _check_method(recipe: object) -> None:
    method = recipe.get("method") if isinstance(recipe, dict) else None
    name = method.get("name") if isinstance(method, dict) else None
    if isinstance(name, str):
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}? If not, " if near else ""
        remedy = f"{hint}run the file that has it as the command line, or import it first"
        problem = f"its method {name!r} is not in this library"
        require(name in METHODS, "method.name", problem, remedy)
