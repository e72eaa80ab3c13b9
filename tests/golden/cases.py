"""Golden cases: inputs, weights and outputs that reference implementations computed.

A case is `NAME.safetensors` beside `NAME.json`. They are read from `tests/golden/data`, or from
another folder of the same layout when the environment variable PARTITA_GOLDEN names one:

    PARTITA_GOLDEN=/path/to/folder python -m pytest tests/golden

Nothing about a case is written into a test. Its files say which parts it has (schedules, runs,
numbers of steps), what they are called and how large they are, and every part that they name is
run; `named` and `parts` make test parameters of them. A case that is here and missing there is a
failure, not a skip, and so is a name that no rule of a reference implementation has.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

OWN = Path(__file__).parent / "data"
FOLDER = Path(os.environ.get("PARTITA_GOLDEN", OWN))

READ: set[tuple[str, str]] = set()
"""Which tensors were looked at so far: names of cases and of tensors."""


class Tensors(dict[str, Tensor]):
    """A case's tensors, which note in `READ` when they are looked at."""

    def __init__(self, case: str, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.case = case

    def __getitem__(self, key: str) -> Tensor:
        READ.add((self.case, key))
        return super().__getitem__(key)


@dataclass(frozen=True)
class Case:
    """One golden case."""

    name: str
    facts: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def config(self) -> dict[str, Any]:
        return self.facts["config"]

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def keys(self, prefix: str = "") -> list[str]:
        """The tensor names that start with a prefix, sorted."""
        return sorted(key for key in self.tensors if key.startswith(prefix))

    def stems(self, suffix: str, prefix: str = "") -> list[str]:
        """What stands between a prefix and a suffix in the names of tensors, sorted."""
        found = (key for key in self.keys(prefix) if key.endswith(suffix))
        return [key.removeprefix(prefix).removesuffix(suffix) for key in found]

    def meaning(self, key: str) -> str:
        """What the case says that a tensor is."""
        return self.facts["tensors"][key]["meaning"]

    def state_dict(self, prefix: str = "sd.") -> dict[str, Tensor]:
        """The stored weights under their original names."""
        return {key.removeprefix(prefix): self.tensors[key] for key in self.keys(prefix)}

    def close(self, ours: Tensor, key: str, **tolerance: float) -> None:
        """Our tensor agrees with the stored one within the case's tolerance."""
        theirs = self.tensors[key]
        limits = {name: self.facts["tolerance"][name] for name in ("atol", "rtol")} | tolerance
        torch.testing.assert_close(
            ours.to(theirs.dtype), theirs, **limits, msg=lambda text: f"{self.name} {key}: {text}"
        )


def load(path: str, folder: Path | None = None) -> Case:
    """The case at `family/name`, for example "text/mdlm_loss"."""
    file = (folder or FOLDER) / path
    facts = json.loads(file.with_name(file.name + ".json").read_text())
    tensors = load_file(file.with_name(file.name + ".safetensors"))
    return Case(path, facts, Tensors(path, tensors))


def own(path: str) -> Case:
    """A case of this package, whatever PARTITA_GOLDEN says: for tests that want weights or tables
    of a size that they know.
    """
    return load(path, OWN)


def named(pattern: str, holding: str = "") -> list[str]:
    """The cases of a kind, for example "md4/d3pm_*": those of `tests/golden/data` and all others.

    With `holding`, those alone that have a tensor whose name starts with it.
    """
    names = set()
    for folder in (OWN, FOLDER):
        for file in folder.glob(f"{pattern}.safetensors"):
            with safe_open(file, "pt") as stored:
                if any(key.startswith(holding) for key in stored.keys()):  # noqa: SIM118
                    names.add(file.relative_to(folder).as_posix().removesuffix(".safetensors"))
    assert names, f"no case is called {pattern}"
    return sorted(names)


def stated(text: str) -> dict[str, float]:
    """The limits that a text such as "rtol 1e-5 atol 1e-6 (float32)" states."""
    found = dict(re.findall(r"([ar]tol) ([\d.e-]+)", text))
    return {"rtol": 0.0, "atol": 0.0} | {name: float(value) for name, value in found.items()}


def rule_of(name: str, known: Iterable[str]) -> str:
    """The rule of a reference implementation that a part is named after: "geometric_5" after
    "geometric". Which rules there are is what a test knows; a name after none of them is an error.
    """
    rules = sorted(known, key=len)
    fits = [rule for rule in rules if re.match(re.escape(rule) + r"(?![a-z])", name)]
    assert fits, f"{name!r} is named after none of {rules}"
    return fits[-1]


def parts(pattern: str, of: Callable[[Case], Iterable[Any]], holding: str = "") -> Collection[Any]:
    """Test parameters: the name of every case of a kind with each of its parts in turn.

    A case that cannot be read, or that has no part, has one parameter, and its test fails.
    """
    found = []
    for name in named(pattern, holding):
        try:
            values = list(of(load(name)))
        except FileNotFoundError:
            values = []
        found += [pytest.param(name, value, id=f"{name}-{value}") for value in values]
        if not values:
            found.append(pytest.param(name, None, id=f"{name}-nothing"))
    return found
