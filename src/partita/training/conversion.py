"""Conversion: a model of one method out of a trained model of another; what they share is kept.

    FlexMDM from MDLM   embedding as it is; the end marker, which MDLM has not, starts as one more
                        mask; the head without the mask's logit, which SUBS left out of every
                        prediction; conditioning and gap head are new, since MDLM is not told the
                        time
    MDLM from AR        everything; where AR begins is where MDLM's mask begins
    PGM from either     the first blocks become the encoder, the others the decoder: queries, keys
                        and values are the thirds of their self-attention; GroupSwap is new

adaLN's new layers start with shift 0, scale 0 and gate 1, not with the gate 0 of a new network,
which would switch every block off. So a FlexMDM says of a text's masks at the start what the MDLM
says of them if one more mask follows the text, and an MDLM what its like says. From AR to the
others nothing is kept but what the weights have learned: attention now reads both sides, and a
place predicts itself and not the next one.
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
"""What each method can be made of."""

_PARTS = 6  # of a block's modulation: shift, scale and gate, for attention and for the MLP
_GATES = (2, 5)
_OF_A_CROSS_BLOCK = {  # its weights, where a block has them, and which thirds they are
    "norm_query.weight": ("norm_attention.weight", None),
    "norm_memory.weight": ("norm_attention.weight", None),
    "attention.query.weight": ("attention.qkv.weight", (0, 1)),
    "attention.key_value.weight": ("attention.qkv.weight", (1, 3)),
}


def is_conversion(recipe: Recipe, base: Recipe) -> bool:
    """Whether a recipe's method can be made of another's."""
    return base.method.name in SOURCES.get(recipe.method.name, ())


def check_conditions(recipe: Recipe, base: Recipe, path: str) -> None:
    """What a network is told of the time or a class is not what another method's is told."""
    told = base.method.conditioning or "none"
    problem = f"the network of {path} is told the {told} of another process"
    start = f"start from a model of {base.method.name}"
    require(told == "none", "method.name", problem, f"{start} that is not told the time")
    problem = f"the network of {path} has class labels, which cannot be taken over"
    none = base.network.classes == 0 or recipe.method.name != "flexmdm"
    require(none, "method.name", problem, f"{start} without any")


def may_change(recipe: Recipe) -> tuple[str, ...]:
    """The keys of a recipe, by how they begin, that a method of this kind has for itself."""
    shared = ("method.name", "network.length", "method.options.")
    return (*shared, "network.options.") if recipe.method.name == "pgm" else shared


def converted(recipe: Recipe, model: TrainedModel) -> nn.Module:
    """The recipe's method with everything that the model can give it."""
    torch.manual_seed(recipe.training.seed)  # of what is new
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
    """Where a weight is found in a network of blocks, and which thirds of it to take."""
    found = re.fullmatch(r"network\.(encoder|decoder)\.(\d+)\.(.+)", name)
    if found is None:
        return name, None
    part, number, rest = found[1], int(found[2]), found[3]
    if part == "encoder":
        return f"network.blocks.{number}.{rest}", None
    rest, thirds = _OF_A_CROSS_BLOCK.get(rest, (rest, None))
    return f"network.blocks.{encoder + number}.{rest}", thirds


def _fitted(given: Tensor, new: Tensor) -> Tensor:
    """One row more than there was is as the last one was; rows that are too many are left out."""
    if len(given) < len(new):
        given = torch.cat([given, given[-1:]])
    return given[: len(new)].to(new.dtype)


def _open_gates(bias: Tensor) -> Tensor:
    parts = list(torch.zeros_like(bias).chunk(_PARTS))
    for gate in _GATES:
        parts[gate] = torch.ones_like(parts[gate])
    return torch.cat(parts)
