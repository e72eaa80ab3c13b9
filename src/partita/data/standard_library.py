"""Text that every machine with Python has: the language reference that comes with `pydoc`."""

from __future__ import annotations

import importlib

from partita.errors import InputError

_SHORTEST = 80  # characters; shorter paragraphs are headings and labels
_NOT_PROSE = ("::=", ">>>", "...  ", "===", "***", "---", "|")


def reference_paragraphs() -> list[str]:
    """Paragraphs of prose from the language reference, one line each, in a fixed order."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError as error:
        problem = "this Python lacks the module pydoc_data"
        raise InputError("text", problem, "install the full standard library") from error
    seen: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            if _is_prose(paragraph):
                seen[" ".join(paragraph.split())] = None
    return list(seen)


def _is_prose(paragraph: str) -> bool:
    flush_left = all(line[:1].strip() for line in paragraph.splitlines())
    plain = not any(mark in paragraph for mark in _NOT_PROSE)
    return flush_left and plain and len(paragraph) >= _SHORTEST
