"""Prompts from texts: an opening to continue, or blanks to fill in."""

from __future__ import annotations

import re
import reprlib

import torch

from partita.contracts.prompt import Prompt
from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.errors import InputError, naming, require, require_int

_BLANK = re.compile(r"__(\d+)__|_{2,}")
_LARGEST = 1 << 20  # tokens of a blank; a typing error must not fill the memory


def infill_prompt(
    tokenizer: Tokenizer, text: str, blank_tokens: int | None = None, *, flexible: bool = False
) -> Prompt:
    """A text with blanks: a run of underscores, or `__12__` for a blank of twelve tokens.

    With `flexible` a run of underscores is an open gap, in which any number of tokens may come.
    """
    if blank_tokens is not None:
        require_int(blank_tokens, "blank_tokens", 1, _LARGEST)
        remedy = "leave one of the two out, or write __12__"
        require(not flexible, "blank_tokens", "flexible blanks have no size", remedy)
    require_text(text, "text")
    ids, known, gaps, place = list[int](), list[bool](), set[int](), 0
    for blank in _BLANK.finditer(text):
        before = tokenizer.encode(before_blank(tokenizer, text[place : blank.start()]))
        ids, known = ids + before, known + [True] * len(before)
        if flexible and not blank[1]:
            gaps.add(len(ids))
        else:
            size = _size(blank, blank_tokens)
            ids, known = ids + [0] * size, known + [False] * size
        place = blank.end()
    require(place > 0, "text", "has no blank", "write one as ____, or __12__ for twelve tokens")
    after = tokenizer.encode(text[place:])
    return _prompt(ids + after, known + [True] * len(after), gaps if flexible else None)


def require_text(text: str, argument: str) -> None:
    """Refuse what is no valid UTF-8: arguments of a command line may hold any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(argument, f"is no UTF-8 text at character {error.start}") from error


def _size(blank: re.Match[str], blank_tokens: int | None) -> int:
    digits = blank[1]
    if not digits:
        return blank_tokens or len(blank[0])
    shown = reprlib.repr(blank[0])
    size = int(digits) if len(digits) < 10 else _LARGEST + 1
    require(size > 0, "text", f"the blank {shown} is empty", "give it a size of 1 or more")
    require(size <= _LARGEST, "text", f"the blank {shown} is too long", "give it a smaller size")
    return size


def before_blank(tokenizer: Tokenizer, text: str) -> str:
    """The text before a blank, for byte-pair encodings without its last spaces.

    Their tokens of words begin with a space, which therefore belongs to the blank.
    """
    return text.rstrip(" ") if isinstance(tokenizer, BPETokenizer) else text


def opening_prompt(
    tokenizer: Tokenizer, text: str, length: int, *, flexible: bool = False
) -> Prompt:
    """A text to continue up to `length` tokens, or, with `flexible`, to any end."""
    require_text(text, "prompt")
    with naming({"text": "prompt"}):
        ids = tokenizer.encode(text)
    problem = f"has {len(ids)} tokens, which leaves nothing of {length} to write"
    require(len(ids) < length, "prompt", problem, "shorten it, or ask for a longer text")
    if flexible:
        return _prompt(ids, [True] * len(ids), {len(ids)})
    hidden = length - len(ids)
    return _prompt(ids + [0] * hidden, [True] * len(ids) + [False] * hidden)


def _prompt(ids: list[int], known: list[bool], gaps: set[int] | None = None) -> Prompt:
    """A prompt of one row. Types are given, since the row may be empty."""
    opened = None if gaps is None else torch.tensor([[n in gaps for n in range(len(ids) + 1)]])
    tokens = torch.tensor([ids], dtype=torch.int64)
    return Prompt(tokens, torch.tensor([known], dtype=torch.bool), opened)
