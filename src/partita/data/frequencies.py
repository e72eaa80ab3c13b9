"""Token frequencies, and the bits of a model that knows nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.errors import require

COUNTED = 1 << 22  # tokens counted at a time: numpy widens them to 8 bytes each


def corpus_entropy(tokens: NDArray[Any] | Iterable[NDArray[Any]]) -> float:
    """Entropy of the token frequencies of a whole stream, in bits: from 0 to log2 of the ids used.

    Takes one array or several in turn, such as the `arrays` of `Shards`, in bounded memory. A model
    that knows the frequencies and nothing else needs this many bits per token.
    """
    counts = np.zeros(0, dtype=np.int64)
    for array in [tokens] if isinstance(tokens, np.ndarray) else tokens:
        require(array.dtype.kind in "iu", "tokens", f"must be whole numbers, got {array.dtype}")
        for start in range(0, array.size, COUNTED):
            part = array.reshape(-1)[start : start + COUNTED].astype(np.int64)
            require(bool(part.min() >= 0), "tokens", f"ids are not negative, got {part.min()}")
            found = np.bincount(part, minlength=counts.size)
            found[: counts.size] += counts
            counts = found
    require(bool(counts.sum() > 0), "tokens", "is empty")
    return entropy_of_counts(counts)


def entropy_of_counts(counts: NDArray[Any]) -> float:
    """The entropy of token counts, in bits."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # no minus zero
