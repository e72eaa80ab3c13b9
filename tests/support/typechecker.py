"""The runtime type checker of the test run: every call in the library is checked, shapes too.

Jaxtyping's own decorator binds the arguments of every call and checks them twice, which took half
of the time of all tests. Here beartype checks them once, and sizes are remembered only where a
function states shapes. What is refused is the same: tests/test_typechecker.py compares both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

from tests.support.shapes import ShapedType, fits

# An int is accepted as a float, as by type checkers (PEP 484).
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_by_jaxtyping = jaxtyping.jaxtyped
_sizes_of_a_call = _by_jaxtyping("context")


def install() -> None:
    """Check faster; to be called before anything of the library is imported."""
    jaxtyping.jaxtyped = jaxtyped
    ShapedType.__instancecheck__ = fits


def jaxtyped(function: Any = None, *, typechecker: Any = None) -> Any:
    """Jaxtyping's decorator, which its import hook writes before every function and class."""
    if function == "context":
        return _by_jaxtyping(function)
    if function is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if isinstance(function, FunctionType):
        return _checked(function, typechecker)
    if inspect.isclass(function):
        constructor = vars(function).get("__init__")
        if hasattr(function, "__dataclass_fields__") and isinstance(constructor, FunctionType):
            function.__init__ = _checked(constructor, typechecker)
        return function
    return _by_jaxtyping(function, typechecker=typechecker)


def _checked(function: FunctionType, typechecker: Any) -> Any:
    """A function whose arguments and result are checked at every call."""
    if hasattr(function, "_is_checked"):
        return function
    hints = {name: _resolved(hint, function) for name, hint in function.__annotations__.items()}
    hints = {name: hint for name, hint in hints.items() if hint is not Any}
    if not hints:
        return function
    shapes = [shape for hint in hints.values() for shape in shapes_of(hint)]
    sizes_by_argument = any("{" in shape for shape in shapes)
    if sizes_by_argument or inspect.isgeneratorfunction(function):
        return _by_jaxtyping(function, typechecker=typechecker)
    checked = check(_annotated(function, hints))
    if shapes:
        checked = _with_sizes(checked)
    functools.update_wrapper(checked, function)
    checked._is_checked = True
    return checked


def _resolved(hint: Any, function: FunctionType) -> Any:
    """What an annotation stands for; `Any` if it names what only type checkers import."""

    def bearer() -> None: ...

    bearer.__annotations__ = {"hint": hint}
    try:
        return get_type_hints(bearer, function.__globals__, include_extras=True)["hint"]
    except Exception:
        return Any


def shapes_of(hint: Any) -> Iterator[str]:
    """The shapes in a type, such as the one in `list[Float[Tensor, "B L"]] | None`."""
    if isinstance(hint, ShapedType):
        yield hint.dim_str
    within = hint if isinstance(hint, list) else get_args(hint)
    aliased = (getattr(hint, name, None) for name in ("__value__", "__bound__", "__supertype__"))
    for part in (*within, *aliased):
        if part is not None:
            yield from shapes_of(part)


def _annotated(function: FunctionType, hints: dict[str, Any]) -> FunctionType:
    """A copy of a function with other annotations."""
    code, scope = function.__code__, function.__globals__
    name, defaults, cells = function.__name__, function.__defaults__, function.__closure__
    copy = FunctionType(code, scope, name, defaults, cells)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _with_sizes(function: Callable[..., Any]) -> Any:
    """Sizes of one name agree within one call of a function."""

    def call(*arguments: Any, **options: Any) -> Any:
        with _sizes_of_a_call:
            return function(*arguments, **options)

    return call
