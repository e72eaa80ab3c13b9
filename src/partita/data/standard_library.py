"""Text that every machine has: the documentation strings of Python's standard library."""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIP = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "encodings"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SHORTEST = 40  # characters; shorter ones are labels, not sentences


def docstrings() -> list[str]:
    """Every documentation string of some length, once, in a fixed order of files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if not _SKIP.intersection(path.relative_to(root).parts):
            seen.update(dict.fromkeys(_docstrings_of(path)))
    return list(seen)


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return  # some distributions ship files for other versions
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
            if len(text) >= _SHORTEST:
                yield text
