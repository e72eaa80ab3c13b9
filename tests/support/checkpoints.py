"""Checkpoint files like those of the reference implementations, and malicious ones."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from tests.golden.cases import Case

TOKENS = 36
DERIVED = "rotary_emb.inv_freq"
MDLM = {"diffusion": "absorbing_state", "parameterization": "subs", "time_conditioning": False}
"""The decisive keys in the configuration of MDLM's training code, from which PGM's began."""


def write_tokenizer(path: Path, tokens: int = TOKENS, last: str = "last") -> None:
    """Write a `tokenizer.json` with a given number of words."""
    words = [*(f"w{number}" for number in range(tokens - 1)), last]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path.write_text(backend.to_str())


def state_of(case: Case, prefix: str = "sd.") -> dict[str, Tensor]:
    """The case's state dict in its original order."""
    names = [name for name in case.facts["tensors"] if name.startswith(prefix)]
    return {name.removeprefix(prefix): case[name] for name in names}


def parameters(state: dict[str, Tensor]) -> list[str]:
    """The names of all tensors but the buffer."""
    return [name for name in state if name != DERIVED]


def other(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other weights of the same shapes."""
    return {name: tensor if name == DERIVED else tensor * 0.5 for name, tensor in state.items()}


def lightning(
    state: dict[str, Tensor],
    ema: list[Tensor] | None = None,
    prefix: str = "backbone.",
    **more: Any,
) -> dict[str, Any]:
    """What Lightning saves."""
    weights = collections.OrderedDict((prefix + name, state[name].clone()) for name in state)
    weights._metadata = {"": {"version": 1}}  # as `state_dict()` has it
    moments = {
        number: {"step": torch.tensor(3.0), "exp_avg": torch.ones(1000), "exp_avg_sq": None}
        for number in range(3)
    }
    content = {
        "epoch": 2,
        "global_step": 1000,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": weights,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {(1, 2): 3}}},
        "callbacks": {},
        "optimizer_states": [{"state": moments, "param_groups": [{"lr": 3e-4}]}],
        "lr_schedulers": [],
        "hyper_parameters": {"config": MDLM},
    }
    if ema is not None:
        content["ema"] = {"decay": 0.9999, "num_updates": 1000, "shadow_params": ema}
    return content | more


# Files that torch.save would never write ---------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """A storage as a pickle may claim it to be."""

    key: Any = "0"
    elements: Any = 6
    kind: Any = torch.FloatStorage


@dataclass(frozen=True)
class Claim:
    """A tensor as a pickle may claim it to be."""

    shape: Any = (2, 3)
    stride: Any = (3, 1)
    offset: Any = 0
    storage: Any = field(default_factory=Numbers)

    def __reduce__(self) -> Any:
        hooks = collections.OrderedDict()
        arguments = (self.storage, self.offset, self.shape, self.stride, False, hooks)
        return torch._utils._rebuild_tensor_v2, arguments


class Writer(pickle.Pickler):
    """Writes `Numbers` as torch.save writes storages."""

    def persistent_id(self, value: object) -> Any:
        if isinstance(value, Numbers):
            return ("storage", value.kind, value.key, "cpu", value.elements)
        return None


def pickled(content: object, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    Writer(stream, protocol).dump(content)
    return stream.getvalue()


def write_archive(path: Path, program: bytes, compression: int = 0, **entries: bytes) -> None:
    """A zip file with this pickle and, by default, one storage of six numbers."""
    files = {"data.pkl": program, "byteorder": b"little", "data/0": bytes(24)} | entries
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(f"archive/{name}", data)


def entries_of(path: Path) -> dict[str, bytes]:
    """The contents of a file of torch.save, by name."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
