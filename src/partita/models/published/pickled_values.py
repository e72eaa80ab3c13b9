"""What pickles of tensors are made of, as plain values: nothing here is called by a pickle.

`pickles.py` makes these of the names and calls in a pickle. The few names that such files need
stand for members of an enumeration; all others stand for `OPAQUE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch


class Opaque(Enum):
    """What is not wanted, or not known."""

    OPAQUE = "something that only Python could rebuild"


OPAQUE = Opaque.OPAQUE


class _Maker(Enum):
    """The few callables of the files in question, by the names that pickles have for them."""

    DICT = "collections OrderedDict"
    TENSOR = "torch._utils _rebuild_tensor_v2"
    OLD_TENSOR = "torch._utils _rebuild_tensor"
    PARAMETER = "torch._utils _rebuild_parameter"


_ALIKE = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Bool")  # names of types


@dataclass(eq=False)
class Node:
    """A part of an omegaconf configuration: the state that its pickle gives it, and nothing else.

    A container keeps its entries under `_content`, a value itself is under `_val`.
    """

    state: dict[str, Any] = field(default_factory=dict, repr=False)


_NODES = (
    "omegaconf.dictconfig DictConfig",
    "omegaconf.nodes AnyNode",
    "omegaconf.nodes BooleanNode",
    "omegaconf.nodes StringNode",
)
KNOWN: dict[str, _Maker | torch.dtype | type[Node]] = {
    **{maker.value: maker for maker in _Maker},
    **{f"torch {kind}Storage": getattr(torch, kind.lower()) for kind in _ALIKE},
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    **dict.fromkeys(_NODES, Node),
}


@dataclass(frozen=True)
class Storage:
    """Numbers elsewhere in the file, as the pickle describes them."""

    dtype: torch.dtype
    key: str
    elements: int


@dataclass(frozen=True)
class View:
    """A tensor as the pickle describes it: part of a storage. Nothing of it is checked yet."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def made(what: object, arguments: Sequence[Any]) -> dict[str, Any] | View | Node | Opaque:
    """What a call gives: a dictionary, a tensor, a part of a configuration, or nothing known."""
    if what is _Maker.DICT and not arguments:
        return {}
    if what is Node:
        return Node()
    if what is _Maker.PARAMETER and arguments:
        return arguments[0] if isinstance(arguments[0], View) else OPAQUE
    if (what is _Maker.TENSOR or what is _Maker.OLD_TENSOR) and len(arguments) >= 4:
        storage, offset, shape, stride = arguments[:4]
        if isinstance(storage, Storage) and _whole((offset,)) and _whole(shape) and _whole(stride):
            return View(storage, offset, shape, stride)
    return OPAQUE


def _whole(numbers: object) -> bool:
    return type(numbers) is tuple and all(type(number) is int for number in numbers)


def storage_named(name: object) -> Storage | Opaque:
    """What a persistent name stands for: ("storage", type, key, device, elements)."""
    if type(name) is not tuple or len(name) < 5 or name[0] != "storage":
        return OPAQUE
    _, dtype, key, _, elements = name[:5]
    if isinstance(dtype, torch.dtype) and type(key) is str and type(elements) is int:
        return Storage(dtype, key, elements)
    return OPAQUE


def entry(config: object, *path: str) -> object:
    """What a configuration has under some names, one inside the other; None for nothing.

    It may be of nodes, or of plain dictionaries such as those of JSON. Only what is on the way is
    looked at: the rest may refer to itself.
    """
    value = _opened(config)
    for name in path:
        value = _opened(value.get(name)) if type(value) is dict else None
    return value


def _opened(value: object) -> object:
    if isinstance(value, Node):
        return value.state.get("_content", value.state.get("_val"))
    return value
