"""Which small faults can be planted in a file: an operator, a number or a comparison changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
SOURCE = HERE / "src" / "partita"

SWAPS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """One change to one line."""

    file: str
    line: int
    start: int
    end: int
    """Columns of the replaced text, in bytes."""
    new: str
    old: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.old} -> {self.new}"

    def of(self, source: str) -> str:
        """The source with the change."""
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = self._changed(lines[self.line - 1])
        return "".join(lines)

    def key(self, source: str) -> str:
        """The line before and after the change: more stable than its number."""
        line = source.splitlines()[self.line - 1]
        return f"{self.file}: {line.strip()} => {self._changed(line).strip()}"

    def _changed(self, line: str) -> str:
        whole = line.encode()
        return (whole[: self.start] + self.new.encode() + whole[self.end :]).decode()


def mutants(file: Path) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    source, found = file.read_text(), list[Mutant]()
    name = str(file.relative_to(SOURCE))
    lines = source.splitlines()
    for node in _computed(ast.parse(source)):
        for line, start, end, new in _changes(node, lines):
            old = lines[line - 1].encode()[start:end].decode()
            found.append(Mutant(name, line, start, end, new, old))
    return sorted(set(found), key=lambda mutant: (mutant.line, mutant.start, mutant.new))


def in_functions(source: str) -> set[int]:
    """The lines of function bodies: all others run when a file is imported."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {*range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)}
    return found


def _computed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotations, decorators, docstrings, type defaults, messages."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in ("require", "cast"):
                continue
            if isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            yield child
            yield from _computed(child)


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        width = len("not ") if isinstance(node.op, ast.Not) else 1
        if not isinstance(node.operand, ast.Constant):
            yield node.lineno, node.col_offset, node.col_offset + width, ""
    elif isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes):
        new = _other(node.value)
        if new is not None and node.end_col_offset is not None and node.lineno == node.end_lineno:
            yield node.lineno, node.col_offset, node.end_col_offset, new


def _between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]
) -> Iterator[tuple[int, int, int, str]]:
    """The operator between two expressions, if all of it is on one line."""
    if type(operator) not in SWAPS or left.end_lineno != right.lineno:
        return
    old, new = SWAPS[type(operator)]
    assert left.end_col_offset is not None
    space = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    place = space.find(old)
    if place >= 0:
        start = left.end_col_offset + place
        yield right.lineno, start, start + len(old), new


def _other(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    return repr(value * 2 + 1) if isinstance(value, float) else None
