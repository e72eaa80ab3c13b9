"""Flags that modalities add to a verb: all are parsed, those of the model's modality are used.

The modality is known only once the model has been read. Errors in flags that only one modality has
are reported before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from partita.errors import require
from partita.modalities import MODALITIES, Modality
from partita.modalities.base import OwnOptions

C = TypeVar("C")


def with_own(common: type[C], verb: str) -> type[C]:
    """A verb's dataclass of options, with the fields that modalities add. `verb` names the
    attribute of a modality that has its options, such as "sample_options"."""
    own = dict.fromkeys(getattr(MODALITIES[name], verb) for name in MODALITIES)
    checked = getattr(common, "__post_init__", lambda _self: None)
    inside = {"__doc__": common.__doc__, "__post_init__": lambda self: checked(self)}
    made = type(common.__name__, (*own, common), inside)
    return cast("type[C]", dataclass(frozen=True, kw_only=True)(made))


def own_options(chosen: object, verb: str, modality: Modality[Any], asked: object) -> OwnOptions:
    """The options that a modality adds, as given; flags of other modalities are refused."""
    for name in given(chosen, verb):
        has = [kind for kind in MODALITIES if name in _names(getattr(MODALITIES[kind], verb))]
        problem = f"is for {' and '.join(has)}, and this is a model of {modality.name}"
        require(modality.name in has, f"--{name}", problem, "leave it out")
    kind: type[OwnOptions] = getattr(modality, verb)
    own = kind(**{name: getattr(chosen, name) for name in _names(kind)})
    own.check(asked)
    return own


def check_own(
    chosen: object, verb: str, asked: object, modalities: Iterable[str] = MODALITIES
) -> None:
    """If exactly one modality has all the given flags, check their values for it."""
    flags = given(chosen, verb)
    having = [name for name in modalities if flags <= _names(getattr(MODALITIES[name], verb))]
    if len(having) == 1:
        own_options(chosen, verb, MODALITIES[having[0]], asked)


def given(chosen: object, verb: str) -> set[str]:
    """The flags of modalities whose values are not the defaults."""
    kinds = [getattr(MODALITIES[name], verb) for name in MODALITIES]
    own = [field for kind in kinds for field in fields(kind)]
    return {field.name for field in own if getattr(chosen, field.name) != field.default}


def _names(kind: type[OwnOptions]) -> set[str]:
    return {field.name for field in fields(kind)}
