"""Blanks filled in by an n-gram model, from both sides or from the left alone.

For a blank of one token the result is exact: p(x | both sides) is proportional to the product of
the n factors that contain x, and all x are tried. A longer blank is filled in by beam search from
left to right; the best V candidates are rescored with the text that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from partita.evaluation.cloze import Answers, Blank
from partita.evaluation.questions import blank_results, share_right
from partita.studies.ngram import NGram

BEAM = 32


@dataclass(frozen=True)
class Fillings:
    """Candidates for a blank, the best first, and log p of each together with what follows."""

    tokens: Int64[np.ndarray, "K size"]
    scores: Float64[np.ndarray, "K"]

    def log_posterior(self) -> Float64[np.ndarray, "K"]:
        """log p of each among these candidates; exact if they are all candidates that exist."""
        rest = self.scores - self.scores[0]
        normalized: Float64[np.ndarray, "K"] = rest - np.log(np.exp(rest).sum())
        return normalized


def fillings(model: NGram, blank: Blank, *, right: bool = True, beam: int = BEAM) -> Fillings:
    """Candidates for a blank. With a beam of 1 and no right side this is greedy decoding."""
    behind = model.order - 1
    history = np.array(blank.ids[max(0, blank.start - behind) : blank.start], dtype=np.int64)
    after = np.array(blank.ids[blank.stop :][:behind] if right else [], dtype=np.int64)
    tokens, scores = np.zeros((1, 0), dtype=np.int64), np.zeros(1)
    for position in range(blank.size):
        ends = scores[:, None] + np.log(model.following(_joined(history, tokens)))
        wanted = max(beam, model.vocab_size) if position == blank.size - 1 else beam
        best = _largest(ends.reshape(-1), wanted)
        rows, new = np.divmod(best, model.vocab_size)
        tokens = np.concatenate([tokens[rows], new[:, None]], 1)
        scores = ends.reshape(-1)[best]
    if len(after):
        follow = np.broadcast_to(after, (len(tokens), len(after)))
        whole = np.concatenate([_joined(history, tokens), follow], 1)
        scores = scores + model.log_probs(whole)[:, -len(after) :].sum(1)
    order = np.argsort(-scores, kind="stable")
    return Fillings(tokens[order], scores[order])


def _joined(
    history: Int64[np.ndarray, "M"], tokens: Int64[np.ndarray, "K size"]
) -> Int64[np.ndarray, "K all"]:
    """Texts with the same history before each."""
    return np.concatenate([np.broadcast_to(history, (len(tokens), len(history))), tokens], 1)


def _largest(values: Float64[np.ndarray, "N"], count: int) -> Int64[np.ndarray, "K"]:
    """The indices of the largest values, in falling order."""
    some = np.argpartition(-values, count - 1)[:count] if count < len(values) else None
    indices = np.arange(len(values)) if some is None else np.sort(some)
    return indices[np.argsort(-values[indices], kind="stable")]


def left_answers(
    model: NGram, blanks: Sequence[Blank], progress: Callable[[int], None] | None = None
) -> Answers:
    """Answers as by an autoregressive model: greedy, with exact nats, from the left side alone."""
    right, nats = [], []
    for blank in blanks:
        best = fillings(model, blank, right=False, beam=1).tokens[0]
        right.append(best.tolist() == blank.answer)
        ids = np.array([blank.ids[max(0, blank.start - model.order + 1) : blank.stop]])
        nats.append(-float(model.log_probs(ids)[0, -blank.size :].sum()))
        if progress is not None:
            progress(1)
    return Answers(torch.tensor(right), torch.tensor([nats], dtype=torch.float64))


def both_sides(
    model: NGram,
    blanks: Sequence[Blank],
    *,
    beam: int = BEAM,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Accuracy of the best candidate from both sides; exact bits of blanks of one token."""
    right: list[bool] = []
    single: list[int] = []
    nats: list[float] = []
    for number, blank in enumerate(blanks):
        found = fillings(model, blank, beam=beam)
        right.append(found.tokens[0].tolist() == blank.answer)
        if blank.size == 1:
            truth = found.tokens[:, 0] == blank.answer[0]
            single.append(number)
            nats.append(-float(found.log_posterior()[truth].item()))
        if progress is not None:
            progress(1)
    results: dict[str, Any] = {"beam": beam, **share_right(torch.tensor(right))}
    if len(single) >= 2:
        own = Answers(torch.tensor(right)[single], torch.tensor([nats], dtype=torch.float64))
        results["one_token"] = blank_results(own, [blanks[number] for number in single])
    return results
