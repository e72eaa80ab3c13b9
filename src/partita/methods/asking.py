"""What speed wants of a loss: where its network is queried, and who applies its head.

Two things make a step slow on a GPU. To find the hidden tokens, a program must wait for the GPU,
and a step that waits cannot be recorded and replayed; so a small head is queried at all positions.
And the logits of a large vocabulary take more memory than all the rest; so kernels apply the head
and never hold them. Methods declare what they are (`plain_softmax`, `all_positions`); nothing here
changes a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.contracts.layouts import Queries
from partita.contracts.packed import places_of
from partita.devices import readable
from partita.methods.contracts import QueriesHidden
from partita.networks.transformer import Transformer
from partita.registry import is_ours

F = TypeVar("F", bound=Callable[..., Any])


def plain_softmax(log_probabilities: F) -> F:
    """Mark a parameterisation as the softmax of all outputs but the mask, which kernels know."""
    log_probabilities.plain_softmax = True  # type: ignore[attr-defined]
    return log_probabilities


def has_plain_softmax(method: object) -> bool:
    """Whether kernels can stand in for a method's `log_probabilities`: not for one of its own."""
    return getattr(getattr(method, "log_probabilities", None), "plain_softmax", False)


SMALL_HEAD = 0.25  # of the weights of the blocks


def asks_everywhere(method: QueriesHidden, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether a loss asks at visible places too, and leaves their answers out.

    To find the hidden ones, a program on a GPU must wait for it, and its steps cannot be captured.
    Where the head is small beside the blocks (about 12 W^2 weights each), it is asked everywhere
    instead: where half of the tokens are hidden, that is an eighth more work at most. A loss that
    holds the logits of all places does so only if they take no more memory than a layer.
    """
    if method.everywhere is not None:
        return method.everywhere
    network = method.network
    if readable(tokens) or not isinstance(network, Transformer):
        return False
    blocks = 12 * network.config.depth * network.config.width
    most = SMALL_HEAD * blocks if fuses(method) else network.config.width
    return network.config.outputs <= most


def fuses(method: object) -> bool:
    """Whether a loss takes over the head of its network, and never holds all logits."""
    return getattr(getattr(method, "network", None), "fuses", False) and has_plain_softmax(method)


def head_of(method: object) -> dict[str, Any]:
    """Keywords for a network that say whether it shall apply its head itself."""
    return {"project": False} if fuses(method) else {}


def needs_host_sync(method: object, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether the loss of such tokens waits for the GPU, or may do what a recorded one does not.

    A method may say so itself (`waits`). One of somebody's own has to: its Python runs once where
    a step is recorded, so what it makes of the step, say, would be lost. So has a law.
    """
    says = getattr(method, "waits", None) if is_ours(method) else vars(type(method)).get("waits")
    if says is not None:
        waits: bool = says(tokens) if is_ours(method) else says(method, tokens)
        return waits
    if not is_ours(method) or not is_ours(getattr(method, "law", method)):
        return True
    if getattr(method, "all_positions", False):  # nothing has to be found
        network = getattr(method, "network", None)
        return not (is_ours(network) and getattr(network, "packed", True))
    return not isinstance(method, QueriesHidden) or not asks_everywhere(method, tokens)


def query_halves(
    method: QueriesHidden,
    ask: Callable[[Bool[Tensor, "B L"], Queries], Float[Tensor, "N _"]],
    tokens: Int64[Tensor, "B L"],
    groups: Bool[Tensor, "B L"],
    valid: Bool[Tensor, "B L"] | None,
) -> tuple[Float[Tensor, "N _"], Queries]:
    """What a network says of each token when its group is hidden, and where they stand.

    `ask` queries the network with some tokens hidden. Either each half is queried at its hidden
    tokens, or both at all positions, and one of the two answers is chosen.
    """
    real = torch.ones_like(groups) if valid is None else valid
    halves = groups & real, ~groups & real
    if asks_twice(method, tokens):
        queries = places_of(valid, tokens)
        first, second = (ask(hidden, queries) for hidden in halves)
        own = groups[queries.rows, queries.positions, None]
        return torch.where(own, first, second), queries
    asked = [places_of(hidden, tokens) for hidden in halves]
    answers = [ask(hidden, queries) for hidden, queries in zip(halves, asked, strict=True)]
    rows, positions = (torch.cat(places) for places in zip(*asked, strict=True))
    return torch.cat(answers), Queries(rows, positions)


def asks_twice(method: QueriesHidden, tokens: Int64[Tensor, "B L"]) -> bool:
    """Whether both halves are queried at all positions.

    What a fused loss asks for is what its head reads: the head itself is applied once.
    """
    free = not readable(tokens) and fuses(method) and isinstance(method.network, Transformer)
    return free or asks_everywhere(method, tokens)
