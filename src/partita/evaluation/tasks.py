"""Results of answered questions, as numbers for tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from partita.evaluation.cloze import Answers, Blank, Mean
from partita.evaluation.questions import Choices

_BITS = 1 / math.log(2)


def share_right(right: Bool[Tensor, "N"], name: str = "accuracy") -> dict[str, float]:
    """The fraction of right answers, and its standard error over questions."""
    mean = Mean.of(right.double()[None])
    return {name: mean.value, f"{name}_error": mean.error}


def blank_results(answers: Answers, blanks: Sequence[Blank]) -> dict[str, Any]:
    """Results of blanks: the fraction filled in correctly, and the bits of the true answers."""
    bits, tokens = Mean.of(answers.nats * _BITS), sum(blank.size for blank in blanks)
    return {
        "count": len(blanks),
        "tokens_per_answer": tokens / len(blanks),
        **share_right(answers.right),
        "bits_per_answer": bits.value,
        "bits_per_answer_error": bits.error,
        "bits_per_answer_draws_error": bits.draws_error,
        "bits_per_token": bits.value * len(blanks) / tokens,
    }


def choice_results(answers: Answers, asked: Choices) -> dict[str, Any]:
    """Results of choices: how often the true ending has the fewest bits, per token and in total."""
    questions = asked.questions
    sizes = [len(question.endings) for question in questions]
    tokens = torch.tensor([ending.size for ending in asked.blanks])
    nats = answers.nats.mean(0)
    truth = torch.tensor([question.answer for question in questions])
    per_token, raw = (
        torch.stack([part.argmin() for part in torch.split(measure, sizes)])
        for measure in (nats / tokens, nats)
    )
    index = torch.tensor([0, *sizes[:-1]]).cumsum(0) + truth
    bits = Mean.of(answers.nats[:, index] * _BITS)
    return {
        "count": len(questions),
        "choices": len(tokens) / len(questions),
        "chance": sum(1 / size for size in sizes) / len(questions),
        **share_right(per_token == truth),
        **share_right(raw == truth, "accuracy_raw"),
        "tokens_per_answer": float(tokens[index].double().mean()),
        "bits_per_answer": bits.value,
        "bits_per_answer_error": bits.error,
        "bits_per_answer_draws_error": bits.draws_error,
        "bits_per_token": bits.value * len(questions) / int(tokens[index].sum()),
    }
