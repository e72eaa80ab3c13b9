"""Tensors in a file: their names, shapes and types at once, their numbers on demand.

Checkpoints hold more than is needed (an optimizer's state is twice the weights), and errors should
come before gigabytes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from partita.files.reading import DamagedError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Stored:
    """One tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    """The numbers, in memory of their own."""

    @property
    def outline(self) -> Tensor:
        """A tensor of this shape and type without numbers."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds of a model."""

    weights: Mapping[str, Stored]
    """The state dict, in its order."""
    ema: list[Stored] | None = None
    """The moving average of the parameters, in the order of `parameters()`."""
    step: int | None = None
    """How many steps it was trained for, if the file says so."""
    config: object = None
    """The configuration of its training, if the file holds one (see `pickled_values.entry`)."""


def read_safetensors(path: Path) -> Checkpoint:
    """The tensors of a safetensors file, which holds one set of weights and nothing else."""
    with _opening(), safetensors.safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    return Checkpoint({name: _stored(path, name, *kind) for name, kind in kinds.items()})


def _stored(path: Path, name: str, shape: list[int], dtype: str) -> Stored:
    if dtype not in _DTYPES:
        raise DamagedError(f"{name:.64} is of type {dtype:.64}, which is not known")
    return Stored(tuple(shape), _DTYPES[dtype], partial(_read, path, name))


def _read(path: Path, name: str) -> Tensor:
    with _opening(), safetensors.safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor.clone()  # the file is only mapped, and may change


@contextmanager
def _opening() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        raise DamagedError(f"it is no safetensors file ({error})") from error
