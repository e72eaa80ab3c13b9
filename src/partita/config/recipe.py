"""A recipe: all options of a run, in sections.

    data  tokenizer  method  network  training  distillation  sampling  run

A recipe comes from a YAML file, from flags (`--network.width 256`), or from both; the resolved
one is stored with the run. The section `run` says where and how the work is done and does not
shape the result; all others do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from partita.config.data import DataOptions, TokenizerOptions
from partita.config.method import MethodOptions
from partita.config.renames import name_of_today
from partita.config.sampling import SamplingOptions
from partita.config.training import DEFAULT_STEPS, RunOptions, TrainingOptions
from partita.distillation.options import DistillationOptions
from partita.errors import InputError, fits, require, suggestion
from partita.files.names import PREFIX
from partita.methods import METHODS
from partita.networks.kinds import plain_network
from partita.networks.options import TransformerOptions
from partita.provenance import without_root

# What may change when a run is resumed: how the work is done, and where the text lies (its
# contents are compared by themselves).
FREE = ("run.", "data.path", "data.cache")


@dataclass(frozen=True)
class Recipe:
    """A run. The defaults suit a laptop: a small network, some minutes on two cores."""

    data: DataOptions = DataOptions()  # noqa: RUF009 - frozen
    tokenizer: TokenizerOptions = TokenizerOptions()  # noqa: RUF009
    method: MethodOptions = MethodOptions()  # noqa: RUF009
    network: TransformerOptions = TransformerOptions(  # noqa: RUF009
        length=128, width=128, depth=4, heads=4, mlp="relu2"
    )
    training: TrainingOptions = TrainingOptions(  # noqa: RUF009
        optimizer="muon", learning_rate=0.02, ema_decay=0.99
    )
    distillation: DistillationOptions = DistillationOptions()  # noqa: RUF009
    sampling: SamplingOptions = SamplingOptions()  # noqa: RUF009
    run: RunOptions = RunOptions()  # noqa: RUF009

    @staticmethod
    def from_dict(sections: object) -> Recipe:
        """The recipe with these sections: keys that are left out have the defaults of `Recipe()`.

        The command line has the same defaults. Every key and every type is checked, and nothing in
        the dictionary is imported, opened or run: it is not trusted.
        """
        return _filled(Recipe(), sections)

    def resolved(self) -> Recipe:
        """The recipe with the length of its run and the kind of its rows filled in.

        Options of its kind of network are kept where they are not the defaults.
        """
        data, training = self.data, self.training
        method = METHODS[self.method.name]
        usual = "padded" if data.label else method.default_rows
        rows = data.rows or self.tokenizer.kind.rows or usual
        longer = data.longer or ("refuse" if method.whole_texts else None)
        data = dataclasses.replace(data, rows=rows, longer=longer)
        if training.steps is None and training.seconds is None:
            training = dataclasses.replace(training, steps=DEFAULT_STEPS)
        network = plain_network(self.network, method.reads)
        return dataclasses.replace(self, data=data, training=training, network=network)

    def portable(self) -> Recipe:
        """The recipe without folders of this machine: data, tokenizer and start by name alone."""
        path, start = self.data.path, self.training.start_from
        hosted = path.startswith(PREFIX)
        name = PREFIX + without_root(path.removeprefix(PREFIX)) if hosted else Path(path).name
        return dataclasses.replace(
            self,
            data=dataclasses.replace(self.data, path=name, cache=DataOptions().cache),
            tokenizer=dataclasses.replace(self.tokenizer, name=without_root(self.tokenizer.name)),
            training=dataclasses.replace(
                self.training, start_from=None if start is None else without_root(start)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as a dictionary of JSON values."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content


T = TypeVar("T")


def _filled(default: T, content: object, prefix: str = "") -> T:
    """A dataclass with its defaults replaced by the given values."""
    if not isinstance(content, Mapping):
        name = prefix.rstrip(".") or "it"
        raise InputError("recipe", f"{name} must hold keys, got {content!r:.200}")
    section: type = type(default)
    kinds = _kinds(section)
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if key not in kinds:
            new = name_of_today(name)
            require(new is None, "recipe", f"{name!r} has another name now", f"write {new}")
            near = suggestion(key, kinds, f"{prefix}{{}}")
            hint = near or f"known: {', '.join(kinds)}"
            raise InputError("recipe", f"unknown key {name!r:.200}", hint)
        if dataclasses.is_dataclass(kinds[key]):
            values[key] = _filled(getattr(default, key), value, f"{name}.")
        else:
            kind = getattr(kinds[key], "__name__", None) or kinds[key]
            problem = f"{name} must be {kind}, got {value!r:.200}"
            require(fits(value, kinds[key]), "recipe", problem)
            values[key] = value
    filled: T = dataclasses.replace(default, **values)  # type: ignore[type-var]
    return filled


@cache
def _kinds(section: type) -> dict[str, Any]:
    return get_type_hints(section)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where two recipes (as dictionaries) differ, without the keys that may change."""
    plain = flatten(Recipe().to_dict())  # an older recipe has the default of a newer key
    flat_old, flat_new = plain | flatten(old), plain | flatten(new)
    # A teacher is known by its checksum, wherever it lies.
    free = (*FREE, "training.start_from") if flat_new.get("distillation.teacher") else FREE
    return [
        f"{key}: {json.dumps(flat_old.get(key))} -> {json.dumps(flat_new.get(key))}"
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key) and not key.startswith(free)
    ]


def flatten(sections: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in sections.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
