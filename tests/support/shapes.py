"""Whether a tensor has the shape and the type that jaxtyping states, decided fast if it has."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from jaxtyping._storage import get_shape_memo
from torch import Tensor

ShapedType = type(Float[Tensor, ""])
"""The class of all types that state a shape."""
_by_jaxtyping = ShapedType.__instancecheck__
_NAMED, _FIXED = re.compile(r"[A-Za-z]\w*"), re.compile(r"\d+")
_DTYPES = {str(each)[6:]: each for each in vars(torch).values() if isinstance(each, torch.dtype)}


@dataclass(frozen=True, slots=True)
class Plan:
    """A shape in which every size has a name, is a number, or may be anything (None)."""

    dtypes: frozenset[torch.dtype]
    rest: str | None
    """The name of all sizes before the others: n in `*n S`."""
    sizes: tuple[str | int | None, ...]


@functools.cache
def plan_of(hint: Any) -> Plan | None:
    """None if only jaxtyping itself can say."""
    if getattr(hint, "array_type", None) is not Tensor or not isinstance(hint.dtypes, list | tuple):
        return None
    if not all(isinstance(name, str) for name in hint.dtypes):
        return None
    rest, sizes = None, hint.dim_str.split()
    if sizes and _NAMED.fullmatch(sizes[0][1:]) and sizes[0][0] == "*":
        rest, sizes = sizes[0][1:], sizes[1:]
    found: list[str | int | None] = []
    for size in sizes:
        if _NAMED.fullmatch(size):
            found.append(size)
        elif _FIXED.fullmatch(size):
            found.append(int(size))
        elif size == "_":
            found.append(None)
        else:
            return None
    dtypes = frozenset(_DTYPES[name] for name in hint.dtypes if name in _DTYPES)
    return Plan(dtypes, rest, tuple(found))


def fits(hint: Any, value: Any) -> bool:
    """What jaxtyping says; it is asked where this is not quickly known to be true."""
    plan = plan_of(hint)
    if plan is None or not isinstance(value, Tensor) or value.dtype not in plan.dtypes:
        return bool(_by_jaxtyping(hint, value))
    shape, sizes = value.shape, plan.sizes
    named, groups = get_shape_memo()[:2]
    before = len(shape) - len(sizes)
    new: dict[str, int] = {}
    if plan.rest is None:
        agrees = before == 0
    else:
        known = groups.get(plan.rest)
        agrees = before >= 0 and (known is None or known == (False, shape[:before]))
        shape = shape[before:]
    if agrees:
        for expected, size in zip(sizes, shape, strict=True):
            if isinstance(expected, str):
                agrees &= new.setdefault(expected, named.get(expected, size)) == size
            elif expected is not None:
                agrees &= expected == size
    if not agrees:
        return bool(_by_jaxtyping(hint, value))
    named.update(new)
    if plan.rest is not None:
        groups[plan.rest] = (False, value.shape[:before])
    return True
