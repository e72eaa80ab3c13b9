"""Texts with something left open, as prompts: an opening to go on from, blanks to fill in."""

from __future__ import annotations

import re
import reprlib

import torch

from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.errors import InputError, naming, require, require_int
from partita.samplers.canvas import Prompt

_BLANK = re.compile(r"__(\d+)__|_{2,}")
_LARGEST = 1 << 20  # tokens of a blank; a slip of the finger must not fill the memory


def infill_prompt(tokenizer: Tokenizer, text: str, blank_tokens: int | None = None) -> Prompt:
    """A text with blanks: a run of underscores, or `__12__` for a blank of twelve tokens."""
    if blank_tokens is not None:
        require_int(blank_tokens, "blank_tokens", 1, _LARGEST)
    require_text(text, "text")
    ids: list[int] = []
    known: list[bool] = []
    place = 0
    for blank in _BLANK.finditer(text):
        before = _encode_before_blank(tokenizer, text[place : blank.start()])
        size = _size(blank, blank_tokens)
        ids += before + [0] * size
        known += [True] * len(before) + [False] * size
        place = blank.end()
    require(place > 0, "text", "has no blank", "write one as ____, or __12__ for twelve tokens")
    after = tokenizer.encode(text[place:])
    return Prompt(torch.tensor([ids + after]), torch.tensor([known + [True] * len(after)]))


def require_text(text: str, argument: str) -> None:
    """Refuse what is no text: words of a command line may hold any bytes."""
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


def _encode_before_blank(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of words begin with their space in byte-pair encodings, so a blank takes it along."""
    return tokenizer.encode(text.rstrip(" ") if isinstance(tokenizer, BPETokenizer) else text)


def opening_prompt(tokenizer: Tokenizer, text: str, length: int) -> Prompt:
    """A text that goes on up to `length` tokens."""
    require_text(text, "prompt")
    with naming({"text": "prompt"}):
        ids = tokenizer.encode(text)
    require(
        len(ids) < length,
        "prompt",
        f"has {len(ids)} tokens, which leaves nothing of {length} to write",
        "shorten it, or ask for a longer text",
    )
    known = torch.arange(length) < len(ids)
    return Prompt(torch.tensor([ids + [0] * (length - len(ids))]), known[None])
