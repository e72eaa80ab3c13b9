"""Everything looks down: a package imports only from packages below it."""

from __future__ import annotations

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
