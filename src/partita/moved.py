"""Names that modules had in version 0.1: they work for one more version, with a warning."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

MOVED = {
    "commands.judging": "evaluation.quality",
    "data.image_sets": "data.image_data",
    "data.options": "config.data",
    "data.reading": "files.reading",
    "data.token_source": "data.shards",
    "downloads": "files.downloads",
    "evaluation.consistency": "studies.consistency",
    "evaluation.enumeration": "likelihood.enumeration",
    "evaluation.likelihood": "likelihood.bounds",
    "evaluation.ngram": "studies.ngram",
    "evaluation.orders": "likelihood.orders",
    "evaluation.pictures": "data.images.pictures",
    "evaluation.profile": "likelihood.profile",
    "evaluation.schedules": "studies.schedules",
    "evaluation.steps": "studies.steps",
    "evaluation.texts": "data.scored_rows",
    "fast": "execution",
    "hub": "models",
    "hub.format": "files.format",
    "hub.image_tokenizers": "data.saved_tokenizers",
    "methods.asking": "methods.inference",
    "methods.options": "config.method",
    "methods.queries": "methods.inference",
    "models.parts": "models.assembling",
    "networks.layouts": "contracts.layouts",
    "networks.packing": "contracts.packed",
    "networks.quantisers": "networks.quantizers",
    "optim.optimisers": "optim.optimizers",
    "ragged": "contracts.packed",
    "recipe": "config.recipe",
    "samplers.canvas": "samplers.state",
    "samplers.options": "config.sampling",
    "training.muon": "optim.muon",
    "training.options": "config.training",
}
"""Old names of modules to new ones, below `partita`."""

NAMES = {
    ("contracts.layouts", "Dense"): "contracts.layouts.DenseLayout",
    ("contracts.layouts", "Segments"): "contracts.layouts.PackedLayout",
    ("contracts.packed", "places_of"): "contracts.packed.indices_of",
    ("contracts.packed", "Ragged"): "contracts.packed.PackedTokens",
    ("methods.base", "Loss"): "contracts.loss.Loss",
    ("partita", "DecoderOptions"): "networks.old_names.DecoderOptions",
    ("partita", "generate"): "sample_ddpm",
    ("partita", "run_recipe"): "train",
    ("processes.corruption", "LAWS"): "processes.corruption.CORRUPTIONS",
    ("processes.corruption", "Law"): "processes.corruption.Corruption",
    ("processes.corruption", "make_law"): "processes.corruption.make_corruption",
    ("networks.quantizers", "EMAQuantiser"): "networks.quantizers.EMAQuantizer",
    ("networks.quantizers", "FSQuantiser"): "networks.quantizers.FSQuantizer",
    ("networks.quantizers", "Quantised"): "networks.quantizers.Quantized",
    ("networks.quantizers", "Quantiser"): "networks.quantizers.Quantizer",
    ("schedules", "discretise"): "schedules.grids.discretize",
    ("models.text_model", "load"): "models.trained.load",
    ("networks", "Dense"): "contracts.layouts.DenseLayout",
    ("networks", "Segments"): "contracts.layouts.PackedLayout",
    ("samplers", "Canvas"): "samplers.state.SamplerState",
    ("samplers", "Session"): "samplers.base.SamplingContext",
    ("samplers.base", "Session"): "samplers.base.SamplingContext",
    ("samplers.gaussian", "generate"): "samplers.gaussian.sample_ddpm",
    ("samplers.state", "Canvas"): "samplers.state.SamplerState",
}
"""Old names that were renamed or moved, in modules that still exist."""


def name_of_before(module: str, name: str) -> object:
    """What an old name of a module means, with a warning; for its `__getattr__`."""
    new = NAMES.get((module.removeprefix("partita."), name))
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    said = f"{module}.{name} is partita.{new} now"
    warnings.warn(said, DeprecationWarning, stacklevel=3)
    place, _, found = f"partita.{new}".rpartition(".")
    return getattr(importlib.import_module(place), found)


def offer_old_names(module: str) -> None:
    """Let a module answer to its names of before, with a warning."""
    vars(sys.modules[module])["__getattr__"] = lambda name: name_of_before(module, name)


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def old_keywords(**today: str) -> Callable[[F], F]:
    """Decorator for a function whose arguments had other names: `@old_keywords(old="new")`."""

    def add(function: F) -> F:
        @functools.wraps(function)
        def renamed(*given: Any, **named: Any) -> object:
            for old, new in today.items():
                if old in named:
                    whose = function.__qualname__.removesuffix(".__init__")
                    said = f"{whose}: {old}= is {new}= now"
                    warnings.warn(said, DeprecationWarning, stacklevel=2)
                    named[new] = named.pop(old)
            return function(*given, **named)

        return cast(F, renamed)

    return add


def old_fields(**today: str) -> Callable[[type[T]], type[T]]:
    """Decorator for a dataclass whose fields had other names: `@old_fields(old="new")`."""

    def add(options: type[T]) -> type[T]:
        build = old_keywords(**today)(options.__init__)
        options.__init__ = build  # type: ignore[method-assign]
        return options

    return add


def today(name: str) -> str | None:
    """The current name of a module or package; None if it has not moved."""
    parts = name.split(".")
    for size in range(len(parts), 1, -1):
        new = MOVED.get(".".join(parts[1:size]))
        if new is not None:
            return ".".join([parts[0], new, *parts[size:]])
    return None


class _OldNames:
    """Finds and loads modules under their old names.

    It is without importlib's base classes, whose import takes a fifth of the time of `--help`.
    """

    def find_spec(
        self,
        fullname: str,
        path: object,  # noqa: ARG002 - what is looked for has a place already
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        new = today(fullname) if fullname.startswith("partita.") else None
        return None if new is None else ModuleSpec(fullname, cast(Any, self), origin=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__  # which the import of the old name replaces
        warnings.warn(f"{spec.name} is {spec.origin} now", DeprecationWarning, stacklevel=2)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def know_old_names() -> None:
    """Let imports find modules by their old names."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())
