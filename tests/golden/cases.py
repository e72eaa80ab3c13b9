"""Golden cases: inputs, weights and outputs that reference implementations computed.

A case is `NAME.safetensors` beside `NAME.json`. They are read from `tests/golden/data`, or from
another folder of the same layout when the environment variable PARTITA_GOLDEN names one: every
shape, size and seed comes from the case's files. A missing case is a failure, not a skip.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(os.environ.get("PARTITA_GOLDEN", Path(__file__).parent / "data"))


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


def load(path: str) -> Case:
    """The case at `family/name`, for example "text/mdlm_loss"."""
    file = FOLDER / path
    facts = json.loads(file.with_name(file.name + ".json").read_text())
    return Case(path, facts, load_file(file.with_name(file.name + ".safetensors")))
