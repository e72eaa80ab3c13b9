"""Everything looks down: a package imports only from packages below it."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.layers import HEIGHT, imported, modules, room


def test_all_that_there_is_has_its_layer():
    assert {room(module) for module in modules()} == set(HEIGHT)


def test_everything_looks_down():
    known, upward = modules(), []
    for module, path in known.items():
        for other in imported(path, known):
            here, there = room(module), room(other)
            if here != there and HEIGHT[there] >= HEIGHT[here]:
                upward.append(f"{module} imports {other}")
    assert upward == []


def test_the_walk_sees_what_is_hidden():
    """Imports inside of functions and for type checkers alone count as well."""
    known = modules()
    assert "partita.kernels.attention" in imported(known["partita.networks.attention"], known)
    assert "partita.models.text_model" in imported(known["partita"], known)
    assert len(known) > 200


def test_tests_share_what_they_need_by_support_alone():
    """A helper that two files of tests want stands in `tests/support`, or beside `laws`' tables."""
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests"):
                named = [str(node.module), *(name.name for name in node.names)]
                assert not any(
                    part.startswith("test_") for name in named for part in name.split(".")
                )


def test_tests_lie_as_the_library_does():
    """Every package has a folder of tests of its own name; what tests the whole lies above."""
    here = Path(__file__).parent
    folders = {path.name for path in here.iterdir() if (path / "__init__.py").exists()}
    assert folders - {"laws", "golden", "support"} <= set(HEIGHT)
