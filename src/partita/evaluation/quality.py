"""Quality of generated texts: their variety, the share of known words, perplexity under a judge.

No number suffices alone. A low perplexity under a judge is easy to get (repeat a common word), so
it is published beside an entropy, which is low for such a text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partita.contracts.batch import Batch
from partita.contracts.estimate import Estimate
from partita.data.documents import Corpus, Piece
from partita.data.frequencies import entropy_of_counts
from partita.data.tokenizers import Tokenizer
from partita.errors import naming, require, require_int
from partita.files import format
from partita.likelihood.bounds import require_finite, standard_error
from partita.methods.ar import AR
from partita.methods.base import check_ids
from partita.models import trained
from partita.models.find import read_found
from partita.models.text_model import TextModel, as_text
from partita.models.trained import TrainedModel
from partita.samplers.front import evaluating

_RUN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def unigram_entropy(sequences: Sequence[Sequence[int]]) -> float:
    """Mean over sequences of the entropy of a sequence's own token frequencies, in bits.

    From 0 (every sequence repeats one token) to log2 of the length (no token occurs twice). It is
    published beside generative perplexity, often in nats: multiply by ln 2.
    """
    require(len(sequences) > 0, "sequences", "is empty")
    counts = (Counter(sequence).values() for sequence in sequences)
    return sum(entropy_of_counts(np.array(list(count))) for count in counts) / len(sequences)


def entropy_nats(sequences: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The same in nats, as it is published, with the standard error over the sequences."""
    each = torch.tensor([unigram_entropy([row]) for row in sequences], dtype=torch.float64)
    return float(each.mean()) * math.log(2), standard_error(each) * math.log(2)


def distinct(sequences: Sequence[Sequence[Hashable]], n: int) -> float:
    """Different n-grams divided by all n-grams of the whole set: above 0, up to 1 (none repeats).

    0 if no sequence is as long as n. It falls with the size of the set: compare equal sizes.
    """
    require_int(n, "n")
    seen: set[tuple[Hashable, ...]] = set()
    total = 0
    for sequence in sequences:
        grams = [tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)]
        total += len(grams)
        seen.update(grams)
    return len(seen) / total if total else 0.0


# Words -------------------------------------------------------------------------------------------


def words_of(text: str) -> Iterator[str]:
    """Maximal runs of letters, in lower case; an apostrophe (of either form) may stand inside."""
    for run in _RUN.findall(text):
        run = run.replace("’", "'")
        if run.replace("'", "").isalpha():
            yield run.lower()
        else:  # the expression counts ½ and ² as letters
            yield from words_of("".join(c if c.isalpha() or c == "'" else " " for c in run))


def _open_end(text: str) -> int:
    """The start of the word that may continue after the end of a text."""
    cut = len(text)
    while cut > 0 and (text[cut - 1].isalpha() or text[cut - 1] in "'’"):
        cut -= 1
    return cut


def _without_ends(text: str) -> str:
    """A text without the words at its two ends, which may be cut."""
    return text[len(text) - _open_end(text[::-1]) : _open_end(text)]


def _uncut(pieces: Iterable[Piece]) -> Iterator[str]:
    """The same text in other pieces, which are never cut inside a word."""
    carry = ""
    for piece in pieces:
        text = carry + piece.text
        cut = len(text) if piece.ends else _open_end(text)
        yield text[:cut]
        carry = text[cut:]


def known_words(corpus: Corpus) -> frozenset[str]:
    """The words that occur in a corpus, which is read piece by piece."""
    return frozenset(word for text in _uncut(corpus.pieces()) for word in words_of(text))


def share_of_known_words(
    texts: Iterable[str], words: Container[str], *, cut_ends: bool = True
) -> float:
    """Fraction of the words of some texts that are in a word list; 0 if there are no words.

    With `cut_ends` the texts are windows that may begin and end inside a word: words that touch
    either end are left out.
    """
    whole = map(_without_ends, texts) if cut_ends else texts
    known = [word in words for text in whole for word in words_of(text)]
    return sum(known) / len(known) if known else 0.0


# A judge -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement(Estimate):
    """Scores of some texts under an autoregressive model. Lower is more probable.

    The errors are standard errors over texts, of a ratio of two sums by the delta method; they are
    NaN for a single text. Only judges with the same tokens have comparable perplexities.
    """

    bits_per_character: float
    bits_per_character_error: float
    texts: int
    characters: int


def judge(
    model: AR, tokenizer: Tokenizer, texts: Sequence[str], *, batch_size: int = 32
) -> Judgement:
    """The exact negative log-likelihood of texts under an autoregressive model and its tokenizer.

    A text that is longer than the model's length is scored in consecutive windows. Every window
    begins with the start token: its tokens are scored without what stands before the window.
    """
    require_int(batch_size, "batch_size")
    require(not isinstance(texts, str), "texts", "is a single text", "give a list of texts")
    ids, known = tokenizer.vocab_size, model.vocab_size
    require(ids <= known, "tokenizer", f"has {ids} ids, the model {known}", "give the model's own")
    encoded = [tokenizer.encode(text) for text in texts]
    tokens = np.array([len(ids) for ids in encoded])
    characters = np.array([len(text) for text in texts])
    require(bool(tokens.sum() > 0), "texts", "hold no tokens")
    nats = np.zeros(len(texts))
    with evaluating(model), torch.no_grad():
        for owners, rows, is_token in _batches(encoded, model, batch_size):
            loss = model.loss(Batch.of(rows, is_token=is_token))
            np.add.at(nats, owners, loss.per_token.double().sum(-1).cpu().numpy())
    require_finite(torch.from_numpy(nats))
    per_token, per_character = _ratio(nats, tokens), _ratio(nats / math.log(2), characters)
    return Judgement(
        *per_token, int(tokens.sum()), *per_character, len(texts), int(characters.sum())
    )


def _batches(
    encoded: list[list[int]], model: AR, size: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Padded batches of windows of similar length: text indices, tokens, and which are tokens."""
    device = next(model.parameters()).device
    windows = [
        (owner, ids[start : start + model.length])
        for owner, ids in enumerate(encoded)
        for start in range(0, len(ids), model.length)
    ]
    windows.sort(key=lambda window: len(window[1]))
    for first in range(0, len(windows), size):
        owners, rows = zip(*windows[first : first + size], strict=True)
        longest = len(rows[-1])
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        is_token = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
        check_ids(ids[is_token], model, "texts")  # here, since on a GPU the model does not check
        yield list(owners), ids.to(device), is_token.to(device)


def _ratio(amounts: NDArray[Any], sizes: NDArray[Any]) -> tuple[float, float]:
    """sum(amounts) / sum(sizes) and its standard error, with the texts as independent draws."""
    count, total = len(amounts), float(sizes.sum())
    ratio = float(amounts.sum()) / total
    if count < 2:
        return ratio, math.nan
    residuals = amounts - ratio * sizes
    return ratio, math.sqrt(count / (count - 1) * float((residuals**2).sum())) / total


# Models with their identity, and all metrics of the texts that they write ------------------------

BATCH = 32  # texts drawn at a time
Identified = tuple[TextModel, dict[str, str]]


def written(
    total: int,
    write: Callable[[int, int], list[str]],
    advance: Callable[[int], object] = lambda _: None,
    batch: int = BATCH,
) -> list[str]:
    """`total` texts in batches: `write` is called with how many, and the index of the first."""
    texts: list[str] = []
    for first in range(0, total, batch):
        count = min(batch, total - first)
        texts += write(count, first)
        advance(count)
    return texts


def load_any(name: str, device: str) -> tuple[TrainedModel, dict[str, str]]:
    """A model and its identity."""

    def read(folder: Path) -> tuple[TrainedModel, dict[str, str]]:
        checksum = format.verify(folder)[format.WEIGHTS]
        return trained.load(folder, device=device), {"path": str(folder), "sha256": checksum}

    return read_found(read, name)


def load_identified(name: str, device: str) -> Identified:
    """A model of text and its identity."""
    model, identity = load_any(name, device)
    return as_text(model, name), identity


def load_judge(name: str, device: str) -> Identified:
    """An autoregressive model and its identity."""
    with naming({"model": "--judge"}):
        model, identity = load_identified(name, device)
    problem, remedy = f"{name} is no autoregressive model", "train one with --method.name ar"
    require(isinstance(model.method, AR), "--judge", problem, remedy)
    return model, identity


def judged(model: TextModel, identity: dict[str, str], texts: list[str]) -> dict[str, Any]:
    """The scores of some texts under an autoregressive model."""
    with torch.no_grad(), naming({"text": "--judge", "texts": "--judge"}):
        verdict = judge(model.method, model.tokenizer, texts)  # type: ignore[arg-type]
    spreads = [name + of for name in ("perplexity", "bits_per_character") for of in ("", "_error")]
    return identity | {name: getattr(verdict, name) for name in (*spreads, "tokens")}


def described(
    texts: list[str],
    tokenizer: Tokenizer,
    words: Container[str] | None,
    examiner: Identified | None,
    *,
    cut_ends: bool,
) -> dict[str, Any]:
    """Metrics of generated texts: variety, known words, scores under a judge."""
    ids = [tokenizer.encode(text) for text in texts]
    results: dict[str, Any] = {
        "count": len(texts),
        "unigram_entropy_bits": unigram_entropy(ids),
        **{f"distinct_{n}": distinct(ids, n) for n in (1, 2, 3)},
    }
    if words is not None:
        results["known_words"] = share_of_known_words(texts, words, cut_ends=cut_ends)
    if examiner is not None:
        results["judge"] = judged(*examiner, texts)
    return results
