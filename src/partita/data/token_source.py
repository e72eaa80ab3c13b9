"""The base class of what batches are read from: tokens by range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor


class TokenSource(ABC):
    """Tokens that are read by range: shards on disk, or a tensor in memory."""

    if TYPE_CHECKING:

        @property
        def ends(self) -> NDArray[np.int64]:
            """Where each document ends, counted in tokens."""

    @abstractmethod
    def __len__(self) -> int:
        """Tokens of all documents."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Int64[Tensor, "N"]:
        """Tokens start..stop."""
