"""Which of a checkpoint's tensors are the model: without wrappers' prefixes, raw or averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.errors import require
from partita.models.published.reference import DERIVED, listed, without_prefix
from partita.models.published.stored import Checkpoint, Stored

WEIGHTS = ("auto", "ema", "raw")
_RAW = "give --weights raw to leave it alone"


@dataclass(frozen=True)
class Selection:
    """One set of weights under the reference network's own names."""

    state: Mapping[str, Stored]
    weights: str
    """ema or raw."""


def select(checkpoint: Checkpoint, weights: str = "auto", skip: Sequence[str] = ()) -> Selection:
    """The weights to use: with "auto", the moving average if there is one."""
    known, ema = f"known: {', '.join(WEIGHTS)}", checkpoint.ema
    require(weights in WEIGHTS, "weights", f"unknown name {weights!r}", known)
    state = _plain(_without(checkpoint.weights, skip))
    problem = "the file holds no moving average (ema)"
    require(ema is not None or weights != "ema", "weights", problem, "give --weights raw")
    if ema is None or weights == "raw":
        return Selection(state, "raw")
    return Selection(_averaged(state, ema), "ema")


def _without(state: Mapping[str, Stored], skip: Sequence[str]) -> dict[str, Stored]:
    """The state dict without keys that begin in one of the given ways."""
    for prefix in skip:
        beginnings = listed({key.split(".")[0]: None for key in state})
        found = any(_begins(key, (prefix,)) for key in state)
        require(found, "skip", f"no key begins with {prefix!r}", f"keys begin with {beginnings}")
    return {key: stored for key, stored in state.items() if not _begins(key, tuple(skip))}


def _begins(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes) or without_prefix(key).startswith(prefixes)


def _plain(state: Mapping[str, Stored]) -> dict[str, Stored]:
    plain: dict[str, Stored] = {}
    for key, stored in state.items():
        name = without_prefix(key)
        remedy = "leave one of them out with --skip PREFIX"
        require(name not in plain, "file", f"holds {name:.100} under two prefixes", remedy)
        plain[name] = stored
    return plain


def _averaged(state: Mapping[str, Stored], ema: Sequence[Stored]) -> dict[str, Stored]:
    """The average in place of every parameter; both have the order of `parameters()`.

    That is the order of the state dict without its buffers, of which there is one.
    """
    names = [name for name in state if name != DERIVED]
    problem = f"its ema averages {len(ema)} tensors, but the model has {len(names)}"
    require(len(ema) == len(names), "file", problem, f"--skip PREFIX leaves keys out, or {_RAW}")
    for name, average in zip(names, ema, strict=True):
        shapes = list(average.shape), list(state[name].shape)
        problem = f"its ema has the shape {shapes[0]} for {name:.100}, whose shape is {shapes[1]}"
        require(shapes[0] == shapes[1], "file", problem, _RAW)
    return {**state, **dict(zip(names, ema, strict=True))}
