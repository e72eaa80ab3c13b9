"""The n-gram baseline: interpolated modified Kneser-Ney (Chen and Goodman, 1998) over tokens.

    p_k(w | h) = max(c(hw) - D(c(hw)), 0) / c(h.) + gamma(h) p_{k-1}(w | h'),    k = 1..n

where h are the last k - 1 tokens and h' those without the first. c counts occurrences at order n,
and below it how many different tokens stand before hw; c(h.) is the sum over w. D(1), D(2) and
D(3) (for 3 and more) follow from the numbers n_i of grams of the order that have the count i, by

    Y = n_1 / (n_1 + 2 n_2),    D(i) = i - (i + 1) Y n_{i+1} / n_i,

or are 0.5, 1 and 1.5 if the text is too small for that. gamma(h) = sum over w of D(c(hw)), over
c(h.), is the discounted mass, so every p_k sums to 1; p_0 is uniform over the vocabulary. After a
history that was never seen, p_k = p_{k-1}. At the beginning of a text, where the history is
shorter, p_k of that length is used. A symbol that is not a token precedes the training text, so
that its first tokens have a history too.

Grams of an order are stored as sorted keys, (index of the first k - 1 tokens' gram) times (V + 1)
plus the last token: one binary search for each order finds a gram, whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64, Integer
from numpy.typing import NDArray
from torch import Tensor

from partita.categorical import PLAIN, Decoding
from partita.errors import require, require_int
from partita.randomness import Noise
from partita.samplers.base import SamplingContext

LONGEST = 16  # tokens of a gram: more than any text can use
FALLBACK = (0.5, 1.0, 1.5)
UNSEEN = -1
SEARCHED = 1 << 20  # grams looked up at a time

Indices = Int64[np.ndarray, "*shape"]


@dataclass(frozen=True)
class Level:
    """The grams of one order, sorted, with the terms of their probabilities."""

    keys: Int64[np.ndarray, "G"]
    counts: Int32[np.ndarray, "G"]
    totals: Float64[np.ndarray, "C"]
    """c(h.) of each gram of the order below; 1 if nothing was counted."""
    left_over: Float64[np.ndarray, "C"]
    """gamma(h); 1 if nothing was counted."""
    discounts: Float64[np.ndarray, "4"]
    """D(0) = 0, D(1), D(2), D(3)."""

    def find(self, keys: Int64[np.ndarray, "*shape"]) -> Indices:
        """The indices of grams, and -1 for unseen ones."""
        index = np.searchsorted(self.keys, keys)
        index[index == len(self.keys)] = 0
        return np.where(self.keys[index] == keys, index, UNSEEN)

    def discounted(self, grams: Indices) -> Float64[np.ndarray, "*shape"]:
        """c - D(c) of grams; 0 for unseen ones."""
        counts = np.where(grams == UNSEEN, 0, self.counts[grams])
        less: Float64[np.ndarray, "*shape"] = counts - self.discounts[np.minimum(counts, 3)]
        return less


class NGram:
    """A trained n-gram model over the tokens 0..vocab_size - 1."""

    def __init__(self, levels: list[Level], vocab_size: int) -> None:
        self.levels, self.vocab_size = levels, vocab_size

    @property
    def order(self) -> int:
        """Number of tokens of the longest gram."""
        return len(self.levels)

    @staticmethod
    def train(
        tokens: Integer[np.ndarray, "T"],
        vocab_size: int,
        order: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> NGram:
        """Train by counting a text. `progress` gets the fraction of the work done, from 0 to 1."""
        require_int(order, "order", 1, LONGEST)
        require_int(vocab_size, "vocab_size")
        many, high = len(tokens), int(tokens.max(initial=0))
        short = f"has {many} tokens, too few for grams of {order}"
        require(many > order, "tokens", short, "give more text, or a smaller order")
        require(high < vocab_size, "tokens", f"ids must lie in 0..{vocab_size - 1}, got {high}")
        stream = np.concatenate([[vocab_size], tokens]).astype(np.int32)
        keys: list[NDArray[np.int64]] = []
        counts: list[NDArray[np.int32]] = []
        before = np.zeros(len(stream) + 1, dtype=np.int32)  # the grams of order 0 are all the same
        for size in range(1, order + 1):
            starts = len(stream) - size + 1
            named = before[:starts].astype(np.int64) * (vocab_size + 1) + stream[size - 1 :]
            unique, grams = _numbered(named)
            del named
            if size > 1:
                counts.append(_continuations(grams, len(unique), before, len(keys[-1])))
            keys.append(unique)
            before = grams
            if progress is not None:
                progress(size / order)
        counts.append(np.bincount(before[1:], minlength=len(keys[-1])).astype(np.int32))
        sizes = [1, *map(len, keys)]
        levels = [_level(*parts, vocab_size) for parts in zip(keys, counts, sizes, strict=False)]
        return NGram(levels, vocab_size)

    def log_probs(self, tokens: Integer[np.ndarray, "N L"]) -> Float64[np.ndarray, "N L"]:
        """log p of every token, given all tokens before it in its row."""
        tokens = tokens.astype(np.int64)
        probs = np.full(tokens.shape, 1 / self.vocab_size)
        contexts = np.zeros(tokens.shape, dtype=np.int64)
        for size, level in enumerate(self.levels[: tokens.shape[1]], 1):
            contexts = contexts[:, : tokens.shape[1] - size + 1]
            grams = self._extended(size, contexts, tokens[:, size - 1 :])
            lower = probs[:, size - 1 :]
            seen = level.discounted(grams) / level.totals[contexts]
            mixed = seen + level.left_over[contexts] * lower
            probs[:, size - 1 :] = np.where(contexts == UNSEEN, lower, mixed)
            contexts = grams
        logs: Float64[np.ndarray, "N L"] = np.log(probs)
        return logs

    def stream_nats(self, tokens: Integer[np.ndarray, "T"]) -> float:
        """-log p of a long text, computed in parts."""
        total, behind = 0.0, self.order - 1
        for first in range(0, len(tokens), SEARCHED):
            begin = max(0, first - behind)
            part = self.log_probs(tokens[None, begin : first + SEARCHED])
            total -= float(part[0, first - begin :].sum())
        return total

    def following(self, history: Integer[np.ndarray, "N M"]) -> Float64[np.ndarray, "N V"]:
        """The distribution of the token that follows each of some histories."""
        rows, length = history.shape
        probs = np.full((rows, self.vocab_size), 1 / self.vocab_size)
        for size, level in enumerate(self.levels[: length + 1], 1):
            contexts = self._gram(history[:, length - size + 1 :])
            probs *= np.where(contexts == UNSEEN, 1.0, level.left_over[contexts])[:, None]
            self._add_seen(probs, level, contexts)
        return probs

    def sample(
        self,
        count: int,
        length: int,
        *,
        seed: int = 0,
        first: int = 0,
        decoding: Decoding = PLAIN,
    ) -> Int64[Tensor, "N L"]:
        """Sequences from left to right; sample i of a seed is the same in any batch."""
        context = SamplingContext(self, Noise.for_batch(seed, count, first), decoding)
        tokens, rows = torch.zeros(count, length, dtype=torch.int64), torch.arange(count)
        for position in range(length):
            history = tokens[:, max(0, position - self.order + 1) : position].numpy()
            log_probs = torch.from_numpy(np.log(self.following(history)))
            tokens[:, position] = context.draw(log_probs, 0, rows, torch.full_like(rows, position))
        return tokens

    def _gram(self, tokens: Integer[np.ndarray, "N K"]) -> Indices:
        """The gram indices of whole rows."""
        grams = np.zeros(len(tokens), dtype=np.int64)
        for size in range(1, tokens.shape[1] + 1):
            grams = self._extended(size, grams, tokens[:, size - 1])
        return grams

    def _extended(
        self, size: int, grams: Indices, tokens: Integer[np.ndarray, "*shape"]
    ) -> Indices:
        """The grams of `size` tokens made of shorter ones and the token that follows each."""
        found = self.levels[size - 1].find(grams * (self.vocab_size + 1) + tokens)
        return np.where(grams == UNSEEN, UNSEEN, found)

    def _add_seen(self, probs: Float64[np.ndarray, "N V"], level: Level, contexts: Indices) -> None:
        """Add max(c - D, 0) / c(h.) for all tokens that were seen after each context."""
        base = self.vocab_size + 1
        known = np.flatnonzero(contexts != UNSEEN)
        starts, ends = (
            np.searchsorted(level.keys, (contexts[known] + more) * base) for more in (0, 1)
        )
        sizes = ends - starts
        rows, owners = np.repeat(known, sizes), np.repeat(np.arange(len(known)), sizes)
        within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
        grams = starts[owners] + within
        tokens = level.keys[grams] % base
        real = tokens < self.vocab_size  # the symbol before the text is not a token
        rows, grams, tokens = rows[real], grams[real], tokens[real]
        probs[rows, tokens] += level.discounted(grams) / level.totals[contexts[rows]]


# Counting ----------------------------------------------------------------------------------------


def _numbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The distinct keys in order, and the index of each key among them."""
    ordered = np.sort(keys)
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    unique = ordered[new]
    del ordered
    numbers = np.empty(len(keys), dtype=np.int32)
    for first in range(0, len(keys), SEARCHED):
        part = slice(first, first + SEARCHED)
        numbers[part] = np.searchsorted(unique, keys[part])
    return unique, numbers


def _continuations(
    grams: NDArray[np.int32], different: int, shorter: NDArray[np.int32], count: int
) -> NDArray[np.int32]:
    """The number of distinct grams that end in each of the `count` shorter ones.

    The gram that begins at i ends in the shorter one that begins at i + 1; each distinct gram is
    counted once.
    """
    example = np.empty(different, dtype=np.int64)
    example[grams] = np.arange(len(grams))
    return np.bincount(shorter[example + 1], minlength=count).astype(np.int32)


def _level(
    keys: NDArray[np.int64], counts: NDArray[np.int32], contexts: int, vocab_size: int
) -> Level:
    discounts = np.array([0.0, *_discounts(counts)])
    prefixes = keys // (vocab_size + 1)
    totals = np.bincount(prefixes, counts, contexts)
    taken = np.bincount(prefixes, discounts[np.minimum(counts, 3)], contexts)
    empty = totals == 0
    totals[empty] = taken[empty] = 1
    return Level(keys, counts, totals, taken / totals, discounts)


def _discounts(counts: NDArray[np.int32]) -> tuple[float, ...]:
    """D(1), D(2) and D(3), each between 0 and its count."""
    numbers = np.bincount(np.minimum(counts, 5), minlength=6).astype(np.float64)
    if not numbers[1:5].all():
        return FALLBACK
    share = numbers[1] / (numbers[1] + 2 * numbers[2])
    found = tuple(float(i - (i + 1) * share * numbers[i + 1] / numbers[i]) for i in (1, 2, 3))
    return found if all(0 < d <= i for i, d in enumerate(found, 1)) else FALLBACK
