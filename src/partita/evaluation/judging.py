"""Loading models with their identity, writing texts in batches, and scoring them with a judge."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import torch

from partita.data.tokenizers import Tokenizer
from partita.errors import naming, require
from partita.evaluation.quality import (
    distinct,
    judge,
    share_of_known_words,
    unigram_entropy,
)
from partita.files import format
from partita.methods import AR
from partita.models import trained
from partita.models.find import read_found
from partita.models.text_model import TextModel, as_text
from partita.models.trained import TrainedModel

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
