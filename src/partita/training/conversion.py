"""Conversion of a trained model of one method into a model of another; shared weights are kept.

    FlexMDM from MDLM   the embedding as it is; the end marker, which MDLM lacks, starts as a copy
                        of the mask; the head without the mask's logit, which SUBS left out of
                        every prediction; conditioning and gap head are new, since MDLM is not
                        conditioned on the time
    MDLM from AR        everything; AR's start token becomes MDLM's mask
    PGM from either     the first blocks become the encoder, the others the decoder: queries, keys
                        and values are the thirds of their self-attention; GroupSwap is new

adaLN's new layers start with shift 0, scale 0 and gate 1. The gate 0 of a new network would switch
every block off. So a converted FlexMDM starts with the predictions that the MDLM makes for the same
text followed by one more mask; MDLM and its complementary form start with each other's predictions.
From AR only the weights are kept, not the predictions: attention now reads both sides, and a
position predicts its own token instead of the next one.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from partita.config.recipe import Recipe
from partita.errors import require
from partita.models.trained import TrainedModel

SOURCES = {
    "flexmdm": ("mdlm",),
    "mdlm": ("ar", "mdlm-complementary"),
    "mdlm-complementary": ("ar", "mdlm"),
    "pgm": ("ar", "mdlm", "mdlm-complementary"),
}
"""For each method, the methods it can be converted from."""

_PARTS = 6  # of a block's modulation: shift, scale and gate, for attention and for the MLP
_GATES = (2, 5)
_OF_A_CROSS_BLOCK = {  # its weights, where a block has them, and which thirds they are
    "norm_query.weight": ("norm_attention.weight", None),
    "norm_memory.weight": ("norm_attention.weight", None),
    "attention.query.weight": ("attention.qkv.weight", (0, 1)),
    "attention.key_value.weight": ("attention.qkv.weight", (1, 3)),
}


def is_conversion(recipe: Recipe, base: Recipe) -> bool:
    """Whether training `recipe` from a model of `base` converts it to another method."""
    return base.method.name in SOURCES.get(recipe.method.name, ())


def check_conditions(recipe: Recipe, base: Recipe, path: str) -> None:
    """Refuse networks conditioned on time or class: the two methods' conditioning differs."""
    condition = base.method.conditioning or "none"
    problem = f"the network of {path} takes the {condition} of another process as an input"
    start = f"start from a model of {base.method.name}"
    require(condition == "none", "method.name", problem, f"{start} that does not take the time")
    problem = f"the network of {path} has class labels, which cannot be taken over"
    none = base.network.classes == 0 or recipe.method.name != "flexmdm"
    require(none, "method.name", problem, f"{start} without any")


def may_change(recipe: Recipe) -> tuple[str, ...]:
    """Prefixes of the recipe keys that may differ from those of the converted model."""
    shared = ("method.name", "network.length", "method.options.")
    return (*shared, "network.options.") if recipe.method.name == "pgm" else shared


def converted(recipe: Recipe, model: TrainedModel) -> nn.Module:
    """The recipe's method, with all weights that it can take from the model."""
    torch.manual_seed(recipe.training.seed)  # for the new weights
    method = recipe.method.build(recipe.network, model.tokenizer.vocab_size)
    state, given = method.state_dict(), model.method.state_dict()
    encoder = len(getattr(method.network, "encoder", ()))
    for name, tensor in state.items():
        source, thirds = _source(name, encoder)
        taken = given.get(source)
        if taken is not None and thirds is not None:
            taken = torch.cat(taken.chunk(3)[slice(*thirds)])
        if taken is not None and taken.shape[1:] == tensor.shape[1:]:
            state[name] = _fitted(taken, tensor)
        elif name.endswith("modulation.bias") and "blocks" in name:
            state[name] = _open_gates(tensor)
    method.load_state_dict(state)
    return method


def _source(name: str, encoder: int) -> tuple[str, tuple[int, int] | None]:
    """The name of a weight in the given network, and which thirds of it to take."""
    found = re.fullmatch(r"network\.(encoder|decoder)\.(\d+)\.(.+)", name)
    if found is None:
        return name, None
    part, number, rest = found[1], int(found[2]), found[3]
    if part == "encoder":
        return f"network.blocks.{number}.{rest}", None
    rest, thirds = _OF_A_CROSS_BLOCK.get(rest, (rest, None))
    return f"network.blocks.{encoder + number}.{rest}", thirds


def _fitted(given: Tensor, new: Tensor) -> Tensor:
    """Fit the number of rows: an extra row copies the last one, surplus rows are dropped."""
    if len(given) < len(new):
        given = torch.cat([given, given[-1:]])
    return given[: len(new)].to(new.dtype)


def _open_gates(bias: Tensor) -> Tensor:
    opened = torch.zeros_like(bias)
    for gate in _GATES:
        opened.chunk(_PARTS)[gate].fill_(1)
    return opened
