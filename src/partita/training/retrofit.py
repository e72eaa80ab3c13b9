"""A FlexMDM out of a trained MDLM: what the two have in common is taken over, the rest is new.

    embedding       as it is; the end marker, which MDLM has not, starts as one more mask
    blocks, norms   as they are
    head            without the mask's logit, which SUBS left out of every prediction
    conditioning    new: MDLM is not told the time
    gap head        new

adaLN's layers start with shift 0, scale 0 and gate 1, not with the gate 0 of a new network, which
would switch every block off. At the start the network therefore says of a text's masks what the
MDLM says of them if one more mask follows the text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partita.errors import require
from partita.hub.trained import TrainedModel
from partita.recipe import Recipe

_PARTS = 6  # of a block's modulation: shift, scale and gate, for attention and for the MLP
_GATES = (2, 5)


def is_retrofit(recipe: Recipe, base: Recipe) -> bool:
    """Whether a recipe turns the model of another into one of flexible length."""
    return (recipe.method.name, base.method.name) == ("flexmdm", "mdlm")


def refuse_conditions(base: Recipe, path: str) -> None:
    """What an MDLM is told of the time or a class is not what FlexMDM's network is told."""
    told = base.method.conditioning or "none"
    problem = f"the network of {path} is told the {told} of another process"
    require(told == "none", "method.name", problem, "start from an mdlm that is not told the time")
    problem = f"the network of {path} has class labels, which cannot be taken over"
    require(base.network.classes == 0, "method.name", problem, "start from an mdlm without any")


def retrofitted(recipe: Recipe, model: TrainedModel) -> nn.Module:
    """The recipe's FlexMDM with everything that an MDLM can give it."""
    torch.manual_seed(recipe.training.seed)  # of what is new
    method = recipe.method.build(recipe.network, model.tokenizer.vocab_size)
    state, given = method.state_dict(), model.method.state_dict()
    for name, tensor in state.items():
        if name in given:
            state[name] = _fitted(given[name], tensor)
        elif name.endswith("modulation.bias") and "blocks" in name:
            state[name] = _open_gates(tensor)
    method.load_state_dict(state)
    return method


def _fitted(given: Tensor, new: Tensor) -> Tensor:
    """One row more than there was is as the last one was; one row less is without it."""
    if len(given) < len(new):
        given = torch.cat([given, given[-1:]])
    return given[: len(new)].to(new.dtype)


def _open_gates(bias: Tensor) -> Tensor:
    parts = list(torch.zeros_like(bias).chunk(_PARTS))
    for gate in _GATES:
        parts[gate] = torch.ones_like(parts[gate])
    return torch.cat(parts)
