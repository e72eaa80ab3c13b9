"""Questions with known answers: last words, choices between endings, words inside a text.

If the tokenizer joins words with the space before them (bpe), a blank includes that space.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from partita.data.blanks import before_blank
from partita.data.documents import SEPARATORS, Corpus
from partita.data.row_files import json_rows, require_unicode
from partita.data.scored_rows import whole_documents
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, require
from partita.evaluation.cloze import Answers, Blank, Mean
from partita.files.reading import reading
from partita.randomness import permuted

# A word of letters only, with a space before it and a space or a punctuation mark after it.
_WORD = re.compile(r"(?<=\S )[^\W\d_]+(?=[\s.,;:!?)])")
_REACH = 4  # assumed characters per token; if that is too few, more text is encoded


@dataclass(frozen=True)
class Questions:
    """Blanks, how many of their texts were cut at the left, and how many could not be made fit."""

    blanks: list[Blank]
    cut: int
    left_out: int = 0


@dataclass(frozen=True)
class Choice:
    """A question: its endings, each hidden in a text of its own, and which one is right."""

    endings: list[Blank]
    answer: int


@dataclass(frozen=True)
class Choices:
    """Multiple-choice questions, how many texts were cut at the left, how many left out."""

    questions: list[Choice]
    cut: int
    left_out: int = 0

    @property
    def blanks(self) -> list[Blank]:
        """All endings of all questions."""
        return [ending for question in self.questions for ending in question.endings]


def last_words(
    corpus: Corpus, tokenizer: Tokenizer, length: int, count: int | None = None
) -> Questions:
    """Blanks for the last word of each line (at most `count`), after the rest of the line."""
    blanks: list[Blank] = []
    lines = whole_documents(replace(corpus, documents="line"), "")
    for number, (line, _) in enumerate(itertools.islice(lines, count), 1):
        place = f"{corpus.path} text {number}"
        found = re.fullmatch(r"(.*\s)(\S+)\s*", line, re.DOTALL)
        if found is None or not found[1].strip():
            raise InputError("file", f"{place} has one word alone", "leave it out")
        blanks.append(_blank(tokenizer, found[1], found[2]))
    fitting = [blank for blank in blanks if blank.size <= length]
    left_out = len(blanks) - len(fitting)
    _require_some(fitting, "text", left_out)
    return replace(_cut(fitting, length), left_out=left_out)


def choices(path: Path, tokenizer: Tokenizer, length: int, count: int | None = None) -> Choices:
    """The questions of a JSONL file, at most `count`: a context, endings, and which is right.

    A space is put between context and ending if neither has one.
    """
    with reading(path):
        require(path.exists(), "path", f"{path} does not exist", "check the name")
        require(path.is_file(), "path", f"{path} is no file", "name a JSONL file")
    questions: list[Choice] = []
    cut = left_out = 0
    for place, row in itertools.islice(json_rows(path), count):
        context, endings, answer = _checked(row, place)
        spaced = context if context[-1:].isspace() or not context else f"{context} "
        blanks = [
            _blank(tokenizer, context if ending[0].isspace() else spaced, ending)
            for ending in endings
        ]
        if max(blank.size for blank in blanks) > length:
            left_out += 1
            continue
        fitting = _cut(blanks, length)
        questions.append(Choice(fitting.blanks, answer))
        cut += fitting.cut
    _require_some(questions, "question", left_out)
    return Choices(questions, cut, left_out)


def words_inside(
    corpus: Corpus, tokenizer: Tokenizer, length: int, count: int, seed: int = 0
) -> Questions:
    """Blanks for random words of a text, each in the middle of a window of `length` tokens.

    Which words are drawn depends only on the text, the tokenizer, the length and the seed.
    """
    documents = whole_documents(corpus, SEPARATORS[corpus.documents])
    text = "".join(document for document, _ in documents)
    words = [found.span() for found in _WORD.finditer(text)]
    blanks: list[Blank] = []
    for index in _in_random_order(len(words), seed):
        window = _window(tokenizer, text, *words[index], length)
        if window is not None:
            blanks.append(window)
        if len(blanks) == count:
            break
    if not blanks:
        problem = f"{corpus.path} has no word with {length} tokens around it"
        raise InputError("file", problem, "give a longer text, or a smaller --length")
    _require_some(blanks, "word")
    return Questions(blanks, 0)


def _in_random_order(size: int, seed: int) -> Iterator[int]:
    """0..size-1 in random order, computed in parts, since only a few may be used."""
    for first in range(0, size, 1024):
        some = torch.arange(first, min(size, first + 1024))
        yield from permuted(some, size, seed, torch.zeros_like(some)).tolist()


def _window(tokenizer: Tokenizer, text: str, start: int, stop: int, length: int) -> Blank | None:
    """A blank in the middle of a window; None if an end of the text is too near."""
    start -= 1 - len(before_blank(tokenizer, " "))
    answer = tokenizer.encode(text[start:stop])
    left = (length - len(answer)) // 2
    right = length - len(answer) - left
    if left < 1:
        return None
    before = _enough(tokenizer, lambda reach: text[max(0, start - reach) : start], left)[-left:]
    after = _enough(tokenizer, lambda reach: text[stop : stop + reach], right)[:right]
    if len(before) < left or len(after) < right:
        return None
    return Blank([*before, *answer, *after], left, left + len(answer))


def _enough(tokenizer: Tokenizer, part: Callable[[int], str], wanted: int) -> list[int]:
    """More than `wanted` tokens of a part of a text, if it has them; `part(n)` has n characters.

    One more, since the first or last token may differ at a cut.
    """
    reach = _REACH * wanted + 64
    while True:
        piece = part(reach)
        ids = tokenizer.encode(piece)
        if len(ids) > wanted or len(piece) < reach:
            return ids
        reach *= 4


def _blank(tokenizer: Tokenizer, before: str, answer: str) -> Blank:
    """A text whose end is hidden."""
    kept = before_blank(tokenizer, before)
    left, hidden = tokenizer.encode(kept), tokenizer.encode(before[len(kept) :] + answer)
    return Blank(left + hidden, len(left), len(left) + len(hidden))


def _require_some(questions: Sequence[object], what: str, left_out: int = 0) -> None:
    """Refuse a file with too few questions for a standard error."""
    found = f"holds {len(questions)} {what}{'s' if len(questions) != 1 else ''}"
    found += f" that the model is long enough for ({left_out} it is not)" if left_out else ""
    require(len(questions) >= 2, "file", f"{found}, and a standard error needs two")


def _cut(blanks: list[Blank], length: int) -> Questions:
    """Blanks at the ends of texts, with texts cut at the left to `length` tokens."""
    kept = [
        Blank(blank.ids[-length:], max(0, blank.start - over), blank.stop - over)
        for blank in blanks
        for over in [max(0, len(blank.ids) - length)]
    ]
    return Questions(kept, sum(len(blank.ids) > length for blank in blanks))


def _checked(row: Any, place: str) -> tuple[str, list[str], int]:  # noqa: ANN401 - any JSON
    """Context, choices and answer of a row, after checking all of it."""
    keys = ("context", "choices", "answer")
    wanted = 'write {"context": "...", "choices": ["...", "..."], "answer": 0}'
    if not isinstance(row, dict) or any(key not in row for key in keys):
        raise InputError("file", f"{place} is no question", wanted)
    context, endings, answer = (row[key] for key in keys)
    require(isinstance(context, str), "file", f"{place}: context is no text", wanted)
    several = isinstance(endings, list) and len(endings) >= 2
    full = several and all(isinstance(ending, str) and ending.strip() for ending in endings)
    require(full, "file", f"{place}: choices are no list of two or more texts", wanted)
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    problem = f"{place}: answer must be a number from 0 to {len(endings) - 1}, got {answer!r}"
    require(whole and 0 <= answer < len(endings), "file", problem)
    for text in (context, *endings):
        require_unicode(text, place)
    return context, endings, answer


# Results, as numbers for tables and JSON ---------------------------------------------------------

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
