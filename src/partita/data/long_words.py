"""Very long words, on which a tokenizer would train for hours.

A byte-pair tokenizer learns from words, and every merge goes through all words that have the pair.
Ordinary words are short, and the same few are counted over and over. A text without spaces is one
word, and the work grows with its length times the number of merges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST = 1024  # characters of one kind without a break; no word of a language comes near
MOST = 1 << 22  # characters of such words that are learned from; some minutes at most
_MARKS = re.compile(r"(?:[^\w\s]|_)+")


def without_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Texts as they are, but for words of `LONGEST` characters or more.

    Whatever stretch of `LONGEST` characters lies inside of a word becomes a text of its own; those
    after the first `MOST` characters are left out. Texts without such words come through untouched.
    """
    left = MOST
    for text in texts:
        begin = 0
        for place in range(0, len(text) - LONGEST + 1, LONGEST):
            part = text[place : place + LONGEST]
            if not _is_one_word(part):
                continue
            if begin < place:
                yield text[begin:place]
            if left > 0:
                yield part
                left -= len(part)
            begin = place + LONGEST
        if begin < len(text):
            yield text[begin:] if begin else text


def _is_one_word(part: str) -> bool:
    """Whether nothing in here ends a word: all is letters, or digits, or white space, or marks."""
    one_kind = part.isalpha() or part.isnumeric() or part.isspace()
    return one_kind or _MARKS.fullmatch(part) is not None
